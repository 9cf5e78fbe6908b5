"""Usage: sums over what was used, from the rollups."""

from __future__ import annotations

import io

from msgspec import Struct

from gateway.api.admin.access import tenant_filter
from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint, File
from gateway.api.admin.shapes import UsageQuery
from gateway.errors import InvalidBody
from gateway.export import write_table
from gateway.instants import instant
from gateway.usage import SUMS, usage

CSV = "text/csv"
MOST_ROWS = 50_000
FILTERS = ("project", "key", "model", "lane", "outcome", "source")


class UsageRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sums, for one combination of the names in `by`, which come first. Days and hours are those of UTC."""

    tenant: str = ""
    project: str = ""
    key: str = ""
    model: str = ""
    lane: str = ""
    outcome: str = ""
    source: str = ""
    day: str = ""
    hour: str = ""
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost_nano_usd: int


READ = Endpoint(
    method="GET",
    path="/usage",
    name="readUsage",
    summary="What was used, added up; a manager's: by its own tenant.",
    query=UsageQuery,
    answer=list[UsageRow],
    also=CSV,
)


class Usage:
    """The handler."""

    def __init__(self, deps: AdminDeps) -> None:
        self._deps = deps
        self.acts = ((READ, self.read_usage),)

    def read_usage(self, call: Call[UsageQuery, None]) -> list[dict[str, str | int]] | File:
        """As `laneway usage --format json` or `csv` says it. Raises `InvalidBody`."""
        query = call.query
        by = [name.strip() for name in query.by.split(",") if name.strip()]
        where = {name: value for name in FILTERS if (value := getattr(query, name)) is not None}
        tenant = tenant_filter(call.caller, query.tenant)
        if tenant is not None:
            where["tenant"] = tenant
        since, until = (self._instant(name, getattr(query, name)) for name in ("since", "until"))
        assert since is not None, "it has a default"
        rows = usage(self._deps.store, by=by, since=since, until=until, where=where, limit=MOST_ROWS + 1)
        if len(rows) > MOST_ROWS:
            raise InvalidBody(
                f"That would be more than {MOST_ROWS} rows; ask for fewer names or a shorter time.",
                param="by",
            )
        if query.format == "json":
            return rows
        out = io.BytesIO()
        write_table(rows, (*dict.fromkeys(by), *SUMS.values()), "csv", out)
        return File(out.getvalue(), CSV)

    def _instant(self, param: str, text: str | None) -> float | None:
        if text is None:
            return None
        try:
            return instant(text, self._deps.clock(), -1)
        except ValueError as error:
            raise InvalidBody(f"Invalid '{param}': {error}", param=param, code="invalid_value") from None
