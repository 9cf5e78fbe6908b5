"""The engine's outputs → chunks of text, one choice or many, with a bill that grows along."""

from __future__ import annotations

from collections.abc import Iterator

from backends.errors import BackendError, BackendFailed, DeadlineExceeded, PromptTooLong
from backends.hf import messages
from backends.hf.prompts import Work
from backends.hf.tokenizer import ModelTokenizer
from backends.output import NOTHING, Output, Piece
from backends.types import Chunk, FinishReason, SamplingParams, Usage


class Answer:
    """The choices of one request. Choice `i` is sequence `i` of its work."""

    def __init__(self, work: Work, sampling: SamplingParams, tokenizer: ModelTokenizer) -> None:
        self._sampling = sampling
        self._echoes = [prompt.echo for prompt in work.prompts for _ in range(sampling.n)]
        self._choices = [
            Output(tokenizer.detokenizer(prompt.token_ids, sampling.skip_special_tokens), sampling)
            for prompt in work.prompts
            for _ in range(sampling.n)
        ]
        self._prompt_tokens = sum(len(prompt.token_ids) for prompt in work.prompts)
        self._completion_tokens = 0

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finished for choice in self._choices)

    def is_finished(self, index: int) -> bool:
        """Whether this choice has ended, perhaps by its text and before the engine knows."""
        return self._choices[index].finished

    def without_tokens(self) -> Iterator[Chunk]:
        """The whole answer when `max_tokens` is 0: the echo, if any."""
        for index, choice in enumerate(self._choices):
            yield self._chunk(index, choice.finish(FinishReason.LENGTH))

    def take(self, index: int, output: messages.Output) -> Chunk:
        """What one step did to a choice. Raises the error that ended it, if one did."""
        if output.error is not None:
            raise error_of(output)
        choice = self._choices[index]
        before = choice.num_tokens
        piece = self._piece(choice, output)
        self._completion_tokens += choice.num_tokens - before
        return self._chunk(index, piece)

    def _piece(self, choice: Output, output: messages.Output) -> Piece:
        """The end token shows only when it is one of the request's own stops and those are to be shown."""
        end = output.stop_token_id
        is_own_stop = end is not None and end in self._sampling.stop_token_ids
        is_shown = is_own_stop and self._sampling.include_stop_str_in_output
        is_silent = end is not None and not is_shown
        piece = NOTHING
        for token_id in output.token_ids[:-1] if is_silent else output.token_ids:
            piece = piece.then(choice.add(token_id))
        if output.finish_reason is None:
            return piece
        end_token_id = end if is_silent else None
        return piece.then(choice.finish(output.finish_reason, end if is_own_stop else None, end_token_id=end_token_id))

    def _chunk(self, index: int, piece: Piece) -> Chunk:
        echo, self._echoes[index] = self._echoes[index], ""
        return Chunk(
            index=index,
            text=echo + piece.text,
            token_ids=piece.token_ids,
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            usage=Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens),
        )


def error_of(output: messages.Output) -> BackendError:
    """The error that ended a sequence."""
    if output.error == messages.ERROR_DEADLINE:
        return DeadlineExceeded(output.message or "The deadline passed before the answer was complete.")
    if output.error == messages.ERROR_TOO_LONG:
        return PromptTooLong(
            output.message or "The request exceeds the maximum context length that the memory of this model allows."
        )
    return BackendFailed(output.message or "The engine failed on this request.")
