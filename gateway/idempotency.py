"""Idempotency-Key: the same key and body get the same answer, joined while it is made, and billed once.

The work of such a request belongs to no connection: it goes on for `LINGER_S` after the last client left, so that a
client that retries finds it. A finished answer is kept for `KEPT_S`, in memory and, since it is stored with its settle,
across restarts. A failed one is not kept: the next try does the work anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Protocol, TypeAlias

from msgspec import Struct

from gateway.errors import LEFT, Conflict, InvalidBody
from gateway.events import Answer

HEADER = "Idempotency-Key"
MOST_NAME_CHARS = 255
KEPT_S = 600.0
LINGER_S = 10.0
MOST_ANSWER_BYTES = 1 << 20  # a larger answer is not kept
OVERHEAD_BYTES = 3 << 10  # of an answer beside its body
NOT_KEPT = ""  # the content type of an answer that was too large
MOST_KEPT_BYTES = 64 << 20  # of all answers together in memory; the oldest go first, and are still in the store


class Name(Struct, frozen=True):
    """Whose request it is and what its key says, as digests: neither key nor body stays in memory."""

    key_id: str
    digest: bytes
    body_digest: bytes

    @classmethod
    def of(cls, key_id: str, name: str, route: str, body: bytes) -> Name:
        """Raises `InvalidBody` for a key that is too long to be one."""
        if len(name) > MOST_NAME_CHARS:
            raise InvalidBody(
                f"Invalid {HEADER}: it has {len(name)} characters, at most {MOST_NAME_CHARS} are allowed.",
                param=HEADER,
                code="invalid_value",
            )
        body_digest = hashlib.sha256(route.encode() + b"\0" + body).digest()
        return cls(key_id, hashlib.sha256(name.encode("utf-8", "replace")).digest(), body_digest)


class Kept(Struct, frozen=True):
    """A whole answer, to be sent again."""

    request_id: str
    content_type: str
    body: bytes


class Answers(Protocol):
    """Where finished answers are found again after a restart."""

    def find(self, key_id: str, name_digest: bytes, since_ms: int) -> Answer | None:
        """The answer kept under this name since then. May block."""
        ...


class Recording:
    """One answer while it is made: its pieces so far, for whoever follows it. Made and read on the event loop."""

    def __init__(self, name: Name, request_id: str, began_at: float) -> None:
        self.name, self.request_id, self.began_at = name, request_id, began_at
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.num_followers = 0
        self.is_over = False
        self.size = 0
        self.task: asyncio.Task[None] | None = None
        self.kept_bytes = 0
        self.result: int | None = None  # the status of how it ended, which may differ from the one of its head
        self._linger: asyncio.TimerHandle | None = None
        self._pieces: list[bytes] = []
        self._moved = asyncio.Event()

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The status and the headers are known."""
        self.status, self.headers = status, headers

    def add(self, piece: bytes) -> None:
        """One more piece of the body."""
        self._pieces.append(piece)
        self.size += len(piece)
        self._wake()

    def end(self) -> None:
        """Nothing more comes."""
        self.is_over = True
        self._wake()

    def forget_body(self) -> None:
        """Keep only that there was one; whoever follows it still has it."""
        self._pieces = []

    @property
    def is_too_large(self) -> bool:
        """Whether the body cannot be kept."""
        return self.size > MOST_ANSWER_BYTES

    async def follow(self) -> AsyncIterator[bytes]:
        """The pieces from the first on, as they come. Status and headers are known when the first one is yielded."""
        pieces, at = self._pieces, 0
        while True:
            moved = self._moved
            while at < len(pieces):
                at += 1
                yield pieces[at - 1]
            if self.is_over:
                return
            await moved.wait()

    def linger(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something in a while, unless somebody comes by then."""
        self._linger = asyncio.get_running_loop().call_later(seconds, then)

    def stay(self) -> None:
        """Somebody came."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def answer(self, last: bytes, content_type: str, at_ms: int) -> Answer:
        """What is kept of the complete answer: of one that is too large that there was one, without body and type.

        `last` is what is still to be sent of it; `at_ms` is the end, in Unix milliseconds.
        """
        body = b"".join(self._pieces) + last
        if len(body) > MOST_ANSWER_BYTES:
            body, content_type = b"", NOT_KEPT
        return Answer(
            key_id=self.name.key_id,
            name_digest=self.name.digest,
            body_digest=self.name.body_digest,
            request_id=self.request_id,
            at=at_ms,
            content_type=content_type,
            body=body,
        )

    def _wake(self) -> None:
        """Everyone who waits goes on; those who come later wait for the next time."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


Work: TypeAlias = Callable[[Recording], Coroutine[None, None, bool]]


class Idempotency:
    """The answers that are being made or are kept, by key and name."""

    def __init__(
        self,
        answers: Answers,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        linger_s: float = LINGER_S,
    ) -> None:
        self._answers = answers
        self._clock, self._wall_clock, self._linger_s = clock, wall_clock, linger_s
        self._recordings: dict[tuple[str, bytes], Recording] = {}
        self._kept_bytes = 0

    async def find(self, name: Name) -> Recording | Kept | None:
        """What there is under this name. Raises `Conflict` for another body, and for an answer too large to keep."""
        self.purge()
        recording = self._known(name)
        if recording is not None:
            return recording
        since_ms = int((self._wall_clock() - KEPT_S) * 1000)
        stored = await asyncio.to_thread(self._answers.find, name.key_id, name.digest, since_ms)
        if stored is None:
            return self._known(name)  # another may have begun meanwhile
        _check_body(name, stored.body_digest)
        if stored.content_type == NOT_KEPT:
            raise _too_large(stored.request_id)
        return Kept(stored.request_id, stored.content_type, stored.body)

    def record(self, name: Name, request_id: str, work: Work) -> Recording:
        """Begin the work in a task of its own. `work` says whether the answer was made whole."""
        recording = Recording(name, request_id, self._clock())
        self._recordings[name.key_id, name.digest] = recording
        recording.task = asyncio.create_task(self._run(recording, work))
        return recording

    def enter(self, recording: Recording) -> None:
        """One more client follows."""
        recording.num_followers += 1
        recording.stay()

    def leave(self, recording: Recording) -> None:
        """It left. When it was the last one, unfinished work ends unless another comes within `linger_s`."""
        recording.num_followers -= 1
        if recording.num_followers == 0 and not recording.is_over:
            recording.linger(self._linger_s, lambda: self._end_if_alone(recording))

    def purge(self) -> None:
        """Forget what is older than `KEPT_S`, and the oldest of what is more than fits."""
        oldest = self._clock() - KEPT_S
        for place, recording in list(self._recordings.items()):
            is_old = recording.began_at <= oldest
            if not is_old and self._kept_bytes <= MOST_KEPT_BYTES:
                return
            if recording.is_over and (is_old or recording.kept_bytes):
                self._forget(place, recording)

    async def stop(self) -> None:
        """End all work that still goes on."""
        tasks = [recording.task for recording in self._recordings.values() if recording.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def num_kept(self) -> int:
        """Answers in memory, those being made included."""
        return len(self._recordings)

    def _known(self, name: Name) -> Recording | None:
        recording = self._recordings.get((name.key_id, name.digest))
        if recording is None:
            return None
        _check_body(name, recording.name.body_digest)
        if recording.is_over and recording.is_too_large:
            raise _too_large(recording.request_id)
        return recording

    async def _run(self, recording: Recording, work: Work) -> None:
        is_whole = False
        try:
            is_whole = await work(recording)
        finally:
            recording.end()
            self._keep(recording, is_whole)

    def _end_if_alone(self, recording: Recording) -> None:
        if recording.num_followers == 0 and not recording.is_over and recording.task is not None:
            self._recordings.pop((recording.name.key_id, recording.name.digest), None)  # nobody joins what ends
            recording.task.cancel(LEFT)

    def _keep(self, recording: Recording, is_whole: bool) -> None:
        if not is_whole:  # whoever follows reads it to its end, and the next try begins anew
            self._forget((recording.name.key_id, recording.name.digest), recording)
        elif recording.is_too_large:
            recording.forget_body()
        else:
            recording.began_at = self._clock()  # it is kept from its end on
            recording.kept_bytes = recording.size + OVERHEAD_BYTES
            self._kept_bytes += recording.kept_bytes

    def _forget(self, place: tuple[str, bytes], recording: Recording) -> None:
        self._kept_bytes -= recording.kept_bytes
        recording.kept_bytes = 0
        if self._recordings.get(place) is recording:
            del self._recordings[place]


def _too_large(request_id: str) -> Conflict:
    return Conflict(
        f"The answer to the first request with this {HEADER} was too large to be kept; it was billed as "
        f"req_{request_id}. Use another {HEADER} to have it made again.",
        param=HEADER,
        code="idempotency_answer_not_kept",
    )


def _check_body(name: Name, known: bytes) -> None:
    if name.body_digest != known:
        raise Conflict(
            f"This {HEADER} was used before with another request. Use a new one for every request.",
            param=HEADER,
            code="idempotency_key_reused",
        )
