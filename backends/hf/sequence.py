"""One prompt and its output inside the engine: token ids, counters, block table. No torch, no scheduling."""

from __future__ import annotations

import enum

from msgspec import Struct, field

from backends.types import FinishReason


class SequenceStatus(enum.Enum):
    """Life of a sequence. A preempted one is WAITING again, with its output kept."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class TokenParams(Struct, frozen=True, kw_only=True):
    """What the engine needs of the sampling parameters: all in token ids, all checked, no text.

    `max_tokens` is final (context and operator's cap applied). `stop_token_ids` holds the model's end tokens too,
    unless they are to be ignored; none ends the sequence before `min_tokens` (the sampler masks them until then).
    `seed` is always set: the front draws one when the caller gave none. `choice` enters the noise beside it.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    stop_token_ids: frozenset[int] = frozenset()


class Sequence(Struct, eq=False, kw_only=True):
    """A sequence. `num_computed_tokens` counts the tokens whose KV is in the cache; the target is `num_tokens`.

    There are no phases: a step closes the gap between computed and target, one token for a decode, more for a prefill
    or a resume. `token_ids` is prompt then output; the last output token is not yet computed while decoding.
    """

    id: int
    token_ids: list[int]
    num_prompt_tokens: int
    params: TokenParams
    lane: str = "standard"
    tenant: str = "default"
    weight: float = 1.0
    arrived_at: float = 0.0
    first_token_at: float | None = None
    deadline_at: float | None = None
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    last_scheduled_at: float = 0.0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far, the end token included."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """The gap a step may close."""
        return len(self.token_ids) - self.num_computed_tokens
