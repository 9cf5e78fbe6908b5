"""One request's bill: what it reserves, what it used, and its settling, once, in limits and ledger together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from backends.errors import BackendError, DeadlineExceeded, InvalidRequest, Overloaded
from backends.types import Chunk, EmbedRequest, GenerateRequest, Usage
from gateway.counting import Count, Counter, Tally, prompt_bytes, sane
from gateway.errors import LEFT, LaneFull, WaitedTooLong
from gateway.estimates import AnswerLengths
from gateway.events import Answer, Line, Outcome, Source
from gateway.gcra import Rates
from gateway.lanes import first_deadline
from gateway.ledger import End, Entry, Ledger, Opening
from gateway.limits import Demand, Limits, Reservation
from gateway.routing import Target
from gateway.rules import MILLION, Price, Rule
from gateway.tenants import VirtualKey

NOTHING = Usage()
MOST_TOKENS = 1 << 31  # of an answer of a model that does not say how long its context is
MOST_NANO = 1 << 62  # what a column of the ledger holds
TOKEN_METERS = ("tpm", "tokens", "usd")


class Order(Struct, frozen=True, kw_only=True):
    """A request and who stands for it.

    `shown_id` is the id that the client chose for it, if it did. `answer` makes what is kept for an Idempotency-Key,
    once all is known; `line` what is kept of the line of a batch, which `line_name` names.
    """

    key: VirtualKey
    request: GenerateRequest
    shown_id: str | None = None
    answer: Callable[[], Answer | None] | None = None
    line: Callable[[], Line] | None = None
    line_name: str | None = None


class Terms(Protocol):
    """What billing needs of `directory.Directory`."""

    def rules(self, key: VirtualKey, model: str) -> tuple[Rule, ...]: ...

    def price(self, model: str) -> Price | None: ...


class Billing:
    """Opens bills. With `is_strict` nothing begins before its admit is durable."""

    def __init__(
        self,
        terms: Terms,
        limits: Limits,
        ledger: Ledger,
        counter: Counter,
        *,
        is_strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terms, self._limits, self._ledger, self._counter = terms, limits, ledger, counter
        self._is_strict = is_strict
        self._clock = clock
        self._lengths = AnswerLengths()

    async def open(self, order: Order, target: Target) -> Bill:
        """Reserve in every scope or in none, and admit. Whoever gets the bill must settle or close it.

        Raises `LimitReached` and its kinds, `NotPriced` and `StoreUnavailable`; then nothing is consumed.
        """
        key, request = order.key, order.request
        rules = self._terms.rules(key, request.model)
        price = self._terms.price(request.model)
        counts = any(rule.meter in TOKEN_METERS for rule in rules)
        prompt = await self._counter.prompt(request, target.backend) if counts else self._counter.estimate(request)
        output = self._output_tokens(order, target, rules, price, prompt)
        cost_nano = None if price is None else min(price.cost(prompt.tokens, output), MOST_NANO)
        demand = Demand(
            request_id=request.request_id,
            model=request.model,
            prompt_tokens=prompt.tokens,
            output_tokens=output,
            cost_nano=cost_nano,
        )
        reservation = self._limits.reserve(rules, demand)
        try:
            entry = self._ledger.admit(_opening(order, demand, price, reservation))
        except BaseException:
            reservation.settle(NOTHING, 0, computed=False)
            raise
        bill = Bill(self, order, target, price, prompt, reservation, entry)
        if self._is_strict:
            await bill.admitted()
        return bill

    def rates(self, order: Order) -> Rates:
        """What is left of the limits for a request that was refused."""
        return self._limits.rates(self._terms.rules(order.key, order.request.model))

    def learn(self, order: Order, prompt: Count, usage: Usage) -> None:
        """An answer ended by itself: later estimates follow it."""
        request = order.request
        if request.sampling.max_tokens is None:
            self._lengths.observe(order.key.id, request.model, usage.completion_tokens // _num_answers(request))
        was_cut = isinstance(request, EmbedRequest) and request.truncate_to is not None  # so not all of it was read
        if usage.source == "reported" and prompt.source == "estimated" and not was_cut:
            self._counter.learn(request.model, prompt_bytes(request), usage.prompt_tokens)

    def tally(self, request: GenerateRequest, prompt: Count) -> Tally:
        """What counts an answer whose backend reports no usage."""
        return Tally(self._counter, request.model, prompt)

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""
        return self._clock

    def _output_tokens(
        self, order: Order, target: Target, rules: Sequence[Rule], price: Price | None, prompt: Count
    ) -> int:
        """Tokens of all answers: as many as the request allows; without a cap an estimate that fits every limit."""
        request = order.request
        num_answers = _num_answers(request)
        longest = _longest_answer(target, request.model)
        if request.sampling.max_tokens is not None:
            return num_answers * min(request.sampling.max_tokens, longest)
        room = num_answers * self._lengths.estimate(order.key.id, request.model)
        for rule in rules:
            if rule.meter in ("tpm", "tokens"):
                room = min(room, rule.amount - prompt.tokens)
            elif rule.meter == "usd" and price is not None and price.completion_nano:
                left = rule.amount - price.cost(prompt.tokens, 0)
                room = min(room, left * MILLION // price.completion_nano)
        return max(1, room)


class Bill:
    """What one request used so far, until it is settled."""

    def __init__(
        self,
        billing: Billing,
        order: Order,
        target: Target,
        price: Price | None,
        prompt: Count,
        reservation: Reservation,
        entry: Entry,
    ) -> None:
        self._billing, self._order, self._target = billing, order, target
        self._price, self._prompt = price, prompt
        self._reservation, self._entry = reservation, entry
        self._opened_at = billing.clock()
        self._began_at: float | None = None
        self._shown_at: float | None = None
        self._usage = NOTHING
        self._tally: Tally | None = None
        self._num_finished = 0
        self._is_closed = False

    @property
    def rates(self) -> Rates:
        """What is left of the limits, after this request."""
        return self._reservation.rates

    @property
    def is_whole(self) -> bool:
        """Whether every choice has ended."""
        return self._num_finished >= num_choices(self._order.request)

    async def admitted(self) -> None:
        """Wait until the admit is durable, as long as the caller waits; the bill is closed when that fails."""
        due_at = first_deadline(self._order.request)
        limit = asyncio.timeout(None if due_at == math.inf else due_at - self._billing.clock())
        try:
            async with limit:
                await self._entry.admitted()
        except TimeoutError:
            late = DeadlineExceeded("The deadline of the request passed before it could begin.")
            self.close(late)
            raise late from None
        except BaseException as error:
            self.close(error)
            raise

    def begin(self) -> None:
        """The backend began to work."""
        self._began_at = self._billing.clock()
        self._entry.attempt(self._target.name, self._began_at - self._opened_at)

    def observe(self, chunk: Chunk) -> Chunk:
        """Take in the next chunk; the same one, with a usage even where the backend reports none."""
        usage = chunk.usage
        if usage.source == "missing":
            if self._tally is None:
                self._tally = self._billing.tally(self._order.request, self._prompt)
            usage = self._tally.add(chunk)
            chunk = replace(chunk, usage=usage)
        elif usage.cached_tokens or usage.reasoning_tokens:
            usage = sane(usage)
        self._usage = self._entry.usage = usage
        if chunk.finish_reason is not None:
            self._num_finished += 1
        if self._shown_at is None and chunk.is_visible:
            self._shown_at = self._billing.clock()
        return chunk

    async def count(self) -> Usage | None:
        """The usage of a whole answer whose backend reported none; None where it did."""
        if self._tally is None:
            return None
        self._usage, self._tally = await self._tally.full_count(self._target.backend), None
        return self._usage

    async def settle(self) -> None:
        """The answer is whole and what it used is known: durable when this returns. Raises `StoreUnavailable`."""
        self._billing.learn(self._order, self._prompt, self._usage)
        answer = self._order.answer() if self._order.answer is not None else None
        line = self._order.line() if self._order.line is not None else None
        await self._entry.settle(self._end("ok", None), answer, line)

    def close(self, error: BaseException) -> None:
        """It ended otherwise. Never awaits; does nothing after `settle` has begun."""
        if self._is_closed:
            return
        if self._tally is not None:
            self._usage = self._tally.count()
        if isinstance(error, BackendError) and not isinstance(error, DeadlineExceeded):
            if self._began_at is None:  # it was tried, in vain
                self._entry.attempt(self._target.name, self._billing.clock() - self._opened_at)
            self._entry.attempt_failed(type(error).__name__)
        is_line = self._order.line is not None
        was_received = self._shown_at is not None and self._order.request.stream
        if isinstance(error, InvalidRequest) or is_line or (_is_failure(error) and not was_received):
            self._usage = NOTHING  # nothing that anybody received: the failure is not the caller's to pay
        self._entry.settle_later(self._end(self._outcome(error), error))

    def _end(self, outcome: Outcome, error: BaseException | None) -> End:
        self._is_closed = True
        now, usage = self._billing.clock(), self._usage
        was_computed = self._began_at is not None
        cost = 0
        if self._price is not None:
            cost = min(self._price.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens), MOST_NANO)
        is_given_back = not was_computed and outcome in ("refused", "shed", "deadline")
        return End(
            outcome=outcome,
            source=self._source(),
            usage=usage,
            cost_nano=cost,
            charges=self._reservation.settle(usage, cost, computed=not is_given_back),
            error=None if error is None else type(error).__name__,
            wait_ms=_milliseconds(self._opened_at, self._began_at if was_computed else now),
            ttft_ms=_milliseconds(self._opened_at, self._shown_at),
            total_ms=_milliseconds(self._opened_at, now),
        )

    def _source(self) -> Source:
        """Where the counts come from; of an answer of which nothing was used, from nowhere."""
        usage = self._usage
        if usage.source == "missing" or (usage is NOTHING and not self.is_whole):
            return "none"
        return usage.source

    def _outcome(self, error: BaseException) -> Outcome:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            if self.is_whole and self._order.line is None:  # a line's answer is kept with its settle, or made again
                return "ok"
            return "stopped" if isinstance(error, asyncio.CancelledError) and error.args != (LEFT,) else "client_abort"
        if isinstance(error, DeadlineExceeded):
            return "deadline"
        if isinstance(error, InvalidRequest):
            return "refused"
        if isinstance(error, LaneFull | WaitedTooLong) or (isinstance(error, Overloaded) and self._began_at is None):
            return "shed"
        return "backend_error"


def _is_failure(error: BaseException) -> bool:
    """Whether something ended on our side of the wire, rather than that the client left or its time ran out."""
    if isinstance(error, asyncio.CancelledError):
        return error.args != (LEFT,)
    return not isinstance(error, GeneratorExit | DeadlineExceeded)


def _opening(order: Order, demand: Demand, price: Price | None, reservation: Reservation) -> Opening:
    key, request = order.key, order.request
    return Opening(
        request_id=request.request_id,
        tenant=key.tenant,
        project=key.project,
        key_id=key.id,
        model=request.model,
        route=request.route,
        lane=request.lane,
        shown_id=order.shown_id,
        line=order.line_name,
        stream=request.stream,
        prompt_tokens=demand.prompt_tokens,
        completion_tokens=demand.output_tokens,
        cost_nano=demand.cost_nano or 0,
        price_version=0 if price is None else price.version,
        charges=reservation.charges,
    )


def num_choices(request: GenerateRequest) -> int:
    """Answers that the client gets."""
    return request.sampling.n * max(1, len(request.prompts))


def _longest_answer(target: Target, model: str) -> int:
    """No answer is longer than the model's context, whatever `max_tokens` says."""
    lengths = (card.max_model_len for card in target.backend.models if card.id == model)
    return next(lengths, None) or MOST_TOKENS


def _num_answers(request: GenerateRequest) -> int:
    """Answers that are generated, from which `best_of` chooses."""
    sampling = request.sampling
    return max(sampling.n, sampling.best_of or 0) * max(1, len(request.prompts))


def _milliseconds(since: float, until: float | None) -> int | None:
    return None if until is None else round((until - since) * 1000)
