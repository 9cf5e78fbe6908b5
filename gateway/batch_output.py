"""Writes what a batch leaves: a file of its answers and a file of its errors, every line in one of them, in order."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack

import msgspec
from msgspec import Struct

from gateway.batch_input import BatchInput
from gateway.batches import OK, Batch, Batches, Ending, Status
from gateway.events import Line
from gateway.files import OUTPUT, Draft, Files
from gateway.store import Store

ID_PREFIX = "batch_req_"


class LineResponse(Struct, frozen=True, kw_only=True):
    """What HTTP would have answered."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(Struct, frozen=True, kw_only=True):
    """Why a line was not run."""

    code: str
    message: str


class OutputLine(Struct, frozen=True, kw_only=True):
    """OpenAI's line of an output file or of an error file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None


NOT_RUN: dict[Status, LineError] = {
    "expired": LineError(
        code="batch_expired", message="This request could not be executed before the completion window expired."
    ),
    "cancelled": LineError(code="batch_cancelled", message="This request was not executed: the batch was cancelled."),
}

_ENCODER = msgspec.json.Encoder()


class BatchOutput:
    """Ends batches. Everything here blocks; any thread may call."""

    def __init__(self, store: Store, batches: Batches, files: Files) -> None:
        self._store = store
        self._batches = batches
        self._files = files

    def end(self, batch: Batch, source: BatchInput) -> None:
        """Make the files and end the batch: `cancelled` when it was, `completed` when all lines are done, else
        `expired`. The store has heard of every line by now. Raises `StoreUnavailable`: then nothing has happened.
        """
        with ExitStack() as stack:
            writers = {kind: _Writer(self._files, stack) for kind in ("output", "error")}
            num_missing = self._write(batch, source, writers)
            status: Status = "cancelled" if batch.status == "cancelling" else "expired" if num_missing else "completed"
            for writer in writers.values():
                writer.finish()
            drafts = {kind: writer.draft for kind, writer in writers.items() if writer.draft is not None}
            ending = Ending(
                completed=writers["output"].num_lines,
                failed=writers["error"].num_lines,
                output_file_id=drafts["output"].id if "output" in drafts else None,
                error_file_id=drafts["error"].id if "error" in drafts else None,
            )
            with self._store.changing() as connection:
                if self._batches.end(connection, batch.id, status, ending):
                    for kind, draft in drafts.items():
                        self._files.keep_within(
                            connection,
                            draft,
                            batch.tenant,
                            filename=f"{batch.id}_{kind}.jsonl",
                            purpose=OUTPUT,
                            expires_after_s=batch.output_expires_after_s,
                        )

    def _write(self, batch: Batch, source: BatchInput, writers: dict[str, _Writer]) -> int:
        """Every line into its file; how many were not run."""
        done = self._batches.done_lines(batch.id)
        line = next(done, None)
        num_missing = 0
        for number, custom_id in enumerate(source.custom_ids() if batch.total else (), start=1):
            if line is not None and line.number == number:
                writers["output" if line.status == OK else "error"].add(_shown(custom_id, line))
                line = next(done, None)
            else:
                num_missing += 1
                error = NOT_RUN["cancelled" if batch.status == "cancelling" else "expired"]
                shown = OutputLine(
                    id=f"{ID_PREFIX}{batch.id[-10:]}{number:05x}", custom_id=custom_id, response=None, error=error
                )
                writers["error"].add(shown)
        return num_missing


class _Writer:
    """One file, made with its first line."""

    def __init__(self, files: Files, stack: ExitStack) -> None:
        self._files = files
        self._stack = stack
        self.draft: Draft | None = None
        self.num_lines = 0

    def add(self, line: OutputLine) -> None:
        if self.draft is None:
            self.draft = self._stack.enter_context(contextlib.closing(self._files.draft(is_capped=False)))
        self.draft.write(_ENCODER.encode(line) + b"\n")
        self.num_lines += 1

    def finish(self) -> None:
        if self.draft is not None:
            self.draft.finish()


def _shown(custom_id: str, line: Line) -> OutputLine:
    response = LineResponse(status_code=line.status, request_id=f"req_{line.request_id}", body=msgspec.Raw(line.body))
    return OutputLine(id=f"{ID_PREFIX}{line.request_id}", custom_id=custom_id, response=response, error=None)
