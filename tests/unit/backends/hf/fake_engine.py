"""An engine without a model: the next token is a hash of all tokens before it. Also a process that serves one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from backends.hf import server
from backends.hf.client import EngineStream
from backends.hf.loop import BuildEngine, Deliver
from backends.hf.messages import PROTOCOL_VERSION, Output, Outputs, Stats, Submit, Welcome
from backends.types import FinishReason

# Ids below 256 are bytes.
END_TOKEN = 256
BOS_TOKEN = 257
HANG_TOKEN = 258  # in a prompt: the step that meets it never ends
CRASH_TOKEN = 259  # in a prompt: the step that meets it raises
VOCABULARY_SIZE = 260
MAX_MODEL_LEN = 2000


def fold(value: int, tokens: Iterable[int]) -> int:
    """A hash that grows with every token; order counts."""
    for token in tokens:
        value = (value * 31 + token) % 1_000_003
    return value


def answer_to(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What the engine answers when nothing stops it early: small letters."""
    value = fold(7, prompt)
    answer = []
    for _ in range(num_tokens):
        answer.append(97 + value % 26)
        value = fold(value, answer[-1:])
    return answer


class Job:
    """A sequence, with the hash of its tokens so far."""

    def __init__(self, submit: Submit) -> None:
        self.submit = submit
        self.value = fold(7, submit.prompt_ids)
        self.num_output = 0
        self.began = False

    def advance(self) -> int:
        token = 97 + self.value % 26
        self.value = fold(self.value, [token])
        self.num_output += 1
        return token


class FakeEngine:
    """One token a step for every sequence. A `SteppedEngine`."""

    def __init__(self, deliver: Deliver, step_s: float = 0.0) -> None:
        self._deliver = deliver
        self._step_s = step_s
        self._inbox: deque[Callable[[], None]] = deque()
        self.live: dict[tuple[object, int], Job] = {}
        self.num_submitted = 0

    def submit(self, origin: object, submit: Submit) -> None:
        self.num_submitted += 1
        self._inbox.append(lambda: self.live.update({(origin, submit.id): Job(submit)}))

    def abort(self, origin: object, sequence_id: int) -> None:
        self._inbox.append(lambda: self._drop((origin, sequence_id)))

    def close(self, origin: object) -> None:
        self._inbox.append(lambda: self._drop(*(key for key in self.live if key[0] is origin)))

    def step(self) -> bool:
        while self._inbox:
            self._inbox.popleft()()
        had_work = bool(self.live)
        per_front: dict[object, list[Output]] = {}
        for key, job in list(self.live.items()):
            per_front.setdefault(key[0], []).append(self._advance(key, job))
        for origin, outputs in per_front.items():
            self._deliver(origin, Outputs(outputs))
        self._deliver(None, Stats(running=len(self.live)))
        if self._step_s and had_work:
            time.sleep(self._step_s)
        return had_work

    def _advance(self, key: tuple[object, int], job: Job) -> Output:
        submit = job.submit
        if HANG_TOKEN in submit.prompt_ids:
            time.sleep(3600)
        if CRASH_TOKEN in submit.prompt_ids:
            raise MemoryError("no memory for this step")
        if not job.began:
            job.began = True
            return Output(submit.id, began=True)
        token = job.advance()
        output = Output(submit.id, token_ids=[token])
        if token in submit.stop_token_ids and job.num_output >= submit.min_tokens:
            output.finish_reason, output.stop_token_id = FinishReason.STOP, token
        elif job.num_output >= submit.max_tokens:
            output.finish_reason = FinishReason.LENGTH
        if output.finish_reason is not None:
            self._drop(key)
        return output

    def _drop(self, *keys: tuple[object, int]) -> None:
        for key in keys:
            self.live.pop(key, None)


def welcome(version: int = PROTOCOL_VERSION) -> Welcome:
    return Welcome(
        version=version,
        max_model_len=MAX_MODEL_LEN,
        max_sequence_tokens=MAX_MODEL_LEN,
        vocab_size=VOCABULARY_SIZE,
        dtype="none",
        device="none",
        runner="fake",
        end_token_ids=[END_TOKEN],
    )


def build(step_s: float = 0.0, made: list[FakeEngine] | None = None) -> BuildEngine:
    """Builds a `FakeEngine`; each one is added to `made`."""

    def build_engine(deliver: Deliver) -> tuple[FakeEngine, Welcome]:
        engine = FakeEngine(deliver, step_s)
        if made is not None:
            made.append(engine)
        return engine, welcome()

    return build_engine


@contextlib.contextmanager
def running(run_dir: Path, step_s: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves a `FakeEngine` as the backend `local`."""
    command = [sys.executable, "-m", __spec__.name, "local", str(run_dir), "--step-s", str(step_s)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """For sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="lw") as name:
        yield Path(name)


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for something another thread or process does."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


def submit_of(prompt: Sequence[int], max_tokens: int = 5) -> Submit:
    """A sequence to send; the client sets its id."""
    return Submit(id=0, prompt_ids=list(prompt), max_tokens=max_tokens)


async def collect(stream: EngineStream) -> list[int]:
    """All tokens of a stream of one sequence."""
    tokens: list[int] = []
    while True:
        output = await stream.next()
        tokens += output.token_ids
        if output.finish_reason is not None:
            return tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--step-s", type=float, default=0.0)
    args = parser.parse_args()
    server.follow_parent()
    sys.exit(server.run(args.name, args.run_dir, build(args.step_s)))


if __name__ == "__main__":
    main()
