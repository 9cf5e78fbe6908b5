"""Fields that are known and do not reach the backend's own fields: ignored on purpose, or refused.

With the field groups that `chat.py`, `completions.py` and `responses.py` read, which are obeyed, these two tables are
every field that OpenAI or vLLM documents. What is in neither is kept in `extra`. All of them stay in `body`, for a
backend that passes requests on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from gateway.openai import faults
from gateway.openai.decoding import names_of, read
from gateway.openai.sampling import INT32_MAX, TokenId

JsonObject: TypeAlias = dict[str, Any]
PropertyName: TypeAlias = Annotated[str, Meta(max_length=64)]
PropertyText: TypeAlias = Annotated[str, Meta(max_length=512)]


class Prediction(Struct, frozen=True, kw_only=True):
    """A guess at the answer, which may only make it faster."""

    type: Literal["content"]
    content: str | list[JsonObject]


class IgnoredFields(Struct, frozen=True, kw_only=True):
    """Checked for their type; leaving them out cannot make the text wrong."""

    # About the client, its bill and its cache.
    user: str = ""
    safety_identifier: Annotated[str, Meta(max_length=128)] = ""
    prompt_cache_key: str = ""
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: JsonObject = {}
    metadata: Annotated[dict[PropertyName, PropertyText], Meta(max_length=16)] = {}
    store: bool = False
    moderation: JsonObject = {}
    request_id: str = ""
    session_id: str = ""
    cache_salt: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")] | None = None
    # Hints.
    verbosity: Literal["low", "medium", "high"] | None = None
    prediction: Prediction | None = None
    length_penalty: Annotated[float, Meta(ge=-100, le=100)] = 1.0
    spaces_between_special_tokens: bool = True
    stream_interval: Annotated[int, Meta(ge=1, le=INT32_MAX)] = 1
    # About sound, pictures and videos, which are refused where they occur.
    audio: JsonObject = {}
    mm_processor_kwargs: JsonObject = {}
    media_io_kwargs: JsonObject = {}
    # For one kind of upstream alone, which finds them in the body.
    kv_transfer_params: JsonObject = {}
    vllm_xargs: JsonObject = {}
    repetition_detection: JsonObject = {}


class RefusedFields(Struct, frozen=True, kw_only=True):
    """Fields that would change the answer, and that nothing here obeys. Each default is the value that asks nothing."""

    use_beam_search: bool = False
    bad_words: list[str] = []
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    logprob_token_ids: list[TokenId] = []
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    web_search_options: JsonObject | None = None
    # A template from a request can hang a server or read what it should not.
    chat_template: str | None = None
    documents: list[JsonObject] = []


_IGNORED = names_of(IgnoredFields)
_REFUSED = names_of(RefusedFields)
UNUSED_GROUPS = (IgnoredFields, RefusedFields)
UNUSED = _IGNORED | _REFUSED


def check_unused(body: Mapping[str, Any]) -> None:
    """Raise `InvalidBody` for a field of these tables that has the wrong type, or that asks for what is refused."""
    if not UNUSED.isdisjoint(body):
        read(body, IgnoredFields)
        refuse(read(body, RefusedFields))


def refuse(fields: Struct) -> None:
    """Raise `InvalidBody` unless each of `fields` has its default, which asks nothing."""
    neutral = type(fields)()
    for name in fields.__struct_fields__:
        if getattr(fields, name) != getattr(neutral, name):
            raise faults.unsupported(name)
