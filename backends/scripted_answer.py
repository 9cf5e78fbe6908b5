"""One request of the scripted backend while it is generated: its choices, token by token and in step. Never waits."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from backends.cap import answer_cap
from backends.output import BytesDetokenizer, Output, Piece
from backends.script import Part, Script, ScriptedToken, part_of
from backends.scripted_play import Play
from backends.types import Chunk, FinishReason, GenerateRequest, SamplingParams, TokenLogprob, ToolCallDelta, Usage
from backends.words import END_TOKEN_ID, Vocabulary

ENDLESS = ScriptedToken(b"")  # what goes on where there is no last token to repeat


class Prompt(Struct, frozen=True):
    """One prompt of a request: its words, and what `echo` puts before each answer."""

    words: list[bytes]
    echo: str = ""
    echo_rows: tuple[TokenLogprob, ...] | None = None


class Tally(Struct):
    """Token counts of a request so far, over all its choices."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    is_reported: bool = True

    def usage(self) -> Usage:
        """The counts as a chunk carries them."""
        if not self.is_reported:
            return Usage(source="missing")
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )


class Lines(Struct, frozen=True):
    """The part of a choice, with the ids of its tokens; shared by choices that say the same."""

    part: Part
    ids: tuple[int, ...]


class Choice:
    """One choice: says its lines one token at a time, at most `cap`, and counts each in `tally`."""

    def __init__(self, prompt: Prompt, lines: Lines, sampling: SamplingParams, cap: int, tally: Tally) -> None:
        self._prompt = prompt
        self._tokens, self._eos = lines.part.tokens, lines.part.eos
        self._ids = lines.ids
        self._sampling = sampling
        self._cap = cap
        self._tally = tally
        self._data = b""
        num_reasoning = sum(token.kind == "reasoning" for token in self._tokens)
        own = replace(sampling, min_tokens=max(0, sampling.min_tokens - num_reasoning))
        self._output = Output(BytesDetokenizer(lambda _: self._data), own)
        self._has_called = False
        self._logprob_sum = 0.0
        self._num_tokens = 0
        self.done = False

    @property
    def mean_logprob(self) -> float:
        """How good the choice is, for `best_of`."""
        mean = self._logprob_sum / max(1, self._num_tokens)
        return -math.inf if math.isnan(mean) else mean

    def open(self, index: int) -> Chunk | None:
        """What there is before the first token: the echoed prompt, and the end where no token is wanted."""
        self.done = self._cap == 0
        if not (self.done or self._prompt.echo):
            return None
        return Chunk(
            usage=self._tally.usage(),
            index=index,
            text=self._prompt.echo,
            logprobs=self._prompt.echo_rows,
            finish_reason=FinishReason.LENGTH if self.done else None,
        )

    def step(self, index: int) -> Chunk:
        """Generate one token."""
        at, self._num_tokens = self._num_tokens, self._num_tokens + 1
        self._tally.completion_tokens += 1
        if self._ends_at(at):
            reason = FinishReason.TOOL_CALLS if self._has_called else FinishReason.STOP
            return self._chunk(index, self._output.finish(reason, end_token_id=END_TOKEN_ID))
        token, token_id = self._token_at(at)
        if token_id in self._sampling.stop_token_ids and at >= self._sampling.min_tokens:
            return self._chunk(index, self._output.finish(FinishReason.STOP, token_id, end_token_id=token_id))
        self._logprob_sum += token.logprob
        piece = self._say(token, token_id)
        if piece.finish_reason is None and self._num_tokens >= self._cap:
            piece = piece.then(self._output.finish(FinishReason.LENGTH))
        return self._chunk(index, piece, token)

    def _ends_at(self, at: int) -> bool:
        ends = self._eos and not self._sampling.ignore_eos
        return ends and at >= max(len(self._tokens), self._sampling.min_tokens)

    def _token_at(self, at: int) -> tuple[ScriptedToken, int]:
        """The token at a position; past the script it is the last one again, with neither name nor alternatives."""
        if at < len(self._tokens):
            return self._tokens[at], self._ids[at]
        if not self._tokens:
            return ENDLESS, END_TOKEN_ID
        last = self._tokens[-1]
        return ScriptedToken(last.data, last.kind, call=last.call), self._ids[-1]

    def _say(self, token: ScriptedToken, token_id: int) -> Piece:
        """The text goes through the stop strings; reasoning and calls do not, and are shown by `_chunk`."""
        if token.kind == "text":
            self._data = token.data
            return self._output.add(token_id, self._row(token))
        if token.kind == "reasoning":
            self._tally.reasoning_tokens += 1
            return Piece(token_ids=(token_id,))
        self._has_called = True
        return self._output.flush().then(Piece(token_ids=(token_id,)))

    def _row(self, token: ScriptedToken) -> TokenLogprob | None:
        if self._sampling.logprobs is None or token is ENDLESS:
            return None
        text = token.data.decode("utf-8", "replace")
        return TokenLogprob(text, token.logprob, token.data, token.top[: self._sampling.logprobs])

    def _chunk(self, index: int, piece: Piece, token: ScriptedToken = ENDLESS) -> Chunk:
        self.done = piece.finish_reason is not None
        return Chunk(
            usage=self._tally.usage(),
            index=index,
            text=piece.text,
            reasoning=token.data.decode() if token.kind == "reasoning" else "",
            tool_calls=(_delta(token),) if token.kind == "call" else (),
            token_ids=piece.token_ids,
            logprobs=piece.logprobs,
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
        )


class Answer(Play):
    """All choices of a request. Every round gives each unfinished choice one token, so that they come interleaved."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        script: Script | None,
        request: GenerateRequest,
        max_model_len: int,
        vocabulary: Vocabulary,
    ) -> None:
        super().__init__(script)
        self._sampling = sampling = request.sampling
        self._num_candidates = max(sampling.n, sampling.best_of or 0)
        self._tally = Tally(
            sum(len(prompt.words) for prompt in prompts),
            self._script.cached_tokens,
            is_reported=self._script.usage == "reported",
        )
        self._kept: list[list[Chunk]] = []
        self._choices: list[Choice] = []
        shared: dict[tuple[int, int], Lines] = {}
        for at, prompt in enumerate(prompts):
            cap = answer_cap(request, len(prompt.words), max_model_len)
            for index in range(at * self._num_candidates, (at + 1) * self._num_candidates):
                key = (at, min(index, len(self._script.choices)))
                if key not in shared:
                    shared[key] = _lines(prompt, script, index, cap, vocabulary)
                self._choices.append(Choice(prompt, shared[key], sampling, cap, self._tally))

    @property
    def num_active(self) -> int:
        """Choices that get a token in the next round."""
        return sum(not choice.done for choice in self._choices)

    @property
    def num_made(self) -> int:
        """Tokens so far."""
        return self._tally.completion_tokens

    @property
    def _keeps_best(self) -> bool:
        return self._num_candidates > self._sampling.n

    def open(self) -> Iterator[Chunk]:
        """The empty chunk that says work has begun, then what the choices show before their first token."""
        yield Chunk(usage=self._tally.usage())
        for index, choice in enumerate(self._choices):
            chunk = choice.open(index)
            self._kept.append([])
            if chunk is not None:
                yield from self._pass_on(index, chunk)
        yield from self._best()

    def step(self) -> Iterator[Chunk]:
        """One round, which ends early where the script fails."""
        for index, choice in enumerate(self._choices):
            if choice.done:
                continue
            if self.failure is not None:
                return
            yield from self._pass_on(index, choice.step(index))
        yield from self._best()

    def _pass_on(self, index: int, chunk: Chunk) -> Iterator[Chunk]:
        """A candidate of `best_of` is kept until the best are known; only its cost is told."""
        if self._keeps_best:
            self._kept[index].append(chunk)
            yield Chunk(usage=chunk.usage)
        else:
            yield chunk

    def _best(self) -> Iterator[Chunk]:
        """Once all candidates have ended: the `n` best of each prompt, best first."""
        if not (self._keeps_best and self.done):
            return
        n, usage = self._sampling.n, self._tally.usage()
        for first in range(0, len(self._choices), self._num_candidates):
            candidates = range(first, first + self._num_candidates)
            ranked = sorted(candidates, key=lambda at: -self._choices[at].mean_logprob)
            for rank, at in enumerate(ranked[:n]):
                index = first // self._num_candidates * n + rank
                yield from (replace(chunk, index=index, usage=usage) for chunk in self._kept[at])


def _lines(prompt: Prompt, script: Script | None, index: int, cap: int, vocabulary: Vocabulary) -> Lines:
    """What choice `index` will say: its part of the script, or the prompt's words where there is none."""
    echo = Part([ScriptedToken(word) for word in prompt.words[:cap]])
    part = echo if script is None else part_of(script, index, cap)
    return Lines(part, vocabulary.ids_of([token.data for token in part.tokens]))


def _delta(token: ScriptedToken) -> ToolCallDelta:
    """A piece of a call; the first, which has the name, also gets the id."""
    call_id = f"call_{secrets.token_hex(12)}" if token.name is not None else None
    return ToolCallDelta(index=token.call, id=call_id, name=token.name, arguments=token.data.decode())
