"""What comes in with admin calls: bodies and query parameters. Instants are Unix seconds, money nano-dollars."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.rules import Meter, Mode, ScopeKind
from gateway.tenants import Role

LARGEST = 2**53 - 1  # JSON numbers above it lose digits in many languages

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Names: TypeAlias = Annotated[list[Name], Meta(max_length=1000)]
Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=420)]  # a project's is `tenant/project`
Weight: TypeAlias = Annotated[float, Meta(gt=0, le=1000)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
Rate: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST)]
Tokens: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=10**9)]
Instant: TypeAlias = Annotated[float, Meta(gt=0, le=10**11)]
Text: TypeAlias = Annotated[str, Meta(max_length=500)]
PageSize: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]


class PageQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a list: `limit` rows, those after the one that `after` (the `next` of the page before) stands for."""

    limit: PageSize = 100
    after: Text | None = None


class TenantsQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of tenants and projects: `ended` adds those that have ended."""

    ended: bool = False


class KeysQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which keys; `ended` adds those that were revoked or have expired."""

    tenant: Name | None = None
    project: Name | None = None
    ended: bool = False


class LimitsQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which limits."""

    scope_kind: ScopeKind | None = None
    scope_id: Id | None = None


class AuditQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the audit log: `limit` rows, those older than the row whose id is `after`."""

    limit: PageSize = 100
    after: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None


class RequestsQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which requests in flight."""

    tenant: Name | None = None


class UsageQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sums over what was used, by the names in `by` (comma-separated: tenant, project, key, model, lane, outcome,
    source, day, hour). `since` and `until` are 7d, 24h or 30m (ago), or a date or time such as 2026-01-31; the other
    parameters leave only what equals them."""

    by: Text = "tenant"
    since: Text = "30d"
    until: Text | None = None
    tenant: Name | None = None
    project: Name | None = None
    key: Name | None = None
    model: Name | None = None
    lane: Name | None = None
    outcome: Name | None = None
    source: Name | None = None
    format: Literal["json", "csv"] = "json"


class NewTenant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant. `weight` is its share of a lane among tenants; without `models` or `lanes` it may use them all."""

    name: Name
    weight: Weight = 1.0
    time_zone: Name = "UTC"
    models: Names | None = None
    lanes: Names | None = None


class TenantChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What changes of a tenant; what is absent stays. Null `models` or `lanes`: all of them."""

    weight: Weight | UnsetType = UNSET
    time_zone: Name | UnsetType = UNSET
    models: Names | UnsetType | None = UNSET
    lanes: Names | UnsetType | None = UNSET


class NewProject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project of a tenant. Without `models` or `lanes` it may use all that its tenant may."""

    name: Name
    models: Names | None = None
    lanes: Names | None = None


class KeyOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to be made; its tenant and project too, where they do not exist. A manager may leave out its tenant.

    `rpm` and `tpm` are a minute's, `concurrency` is of requests at once. `budget_nano` in nano-dollars is for each
    `budget_period` (a month by default): hour, day, week, month, rolling:24h, rolling:30d or prepaid.
    """

    tenant: Name | None = None
    project: Name = "default"
    name: Annotated[str, Meta(max_length=200)] = ""
    role: Role = "user"
    models: Names | None = None
    lanes: Names | None = None
    default_lane: Name | None = None
    expires_at: Instant | None = None
    rpm: Rate | None = None
    tpm: Rate | None = None
    concurrency: Rate | None = None
    budget_nano: Amount | None = None
    budget_period: Name | None = None


class Rotation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many seconds the old key goes on beside the new one."""

    overlap_s: Seconds = 86_400


class LimitOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit. It replaces the one with the same scope, meter, period, mode and model, and keeps its windows.

    `scope_id` is a key's id, `tenant/project`, a tenant's name or a model. `amount` is in requests a minute (rpm),
    tokens a minute (tpm), requests at once (concurrency), tokens (tokens) or nano-dollars (usd); the last two have a
    `period`: hour, day, week, month, rolling:24h, rolling:30d or prepaid.
    """

    scope_kind: ScopeKind
    scope_id: Id
    meter: Meter
    amount: Amount
    period: Name | None = None
    mode: Mode = "enforce"
    model: Name | None = None


class TopUp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a prepaid budget grows by, in its unit."""

    amount: Annotated[int, Meta(ge=1, le=LARGEST)]


class CheckOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request that is only thought of."""

    key_id: Name
    model: Name
    prompt_tokens: Tokens
    max_tokens: Tokens


class PriceOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's new price in nano-dollars a million tokens. The model `*` stands for all that have none."""

    model: Name
    prompt_nano: Amount
    completion_nano: Amount
    cached_nano: Amount
