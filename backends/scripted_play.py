"""What the scripted backend plays round by round: when the next round is due, and whether it fails instead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from backends.script import Failure, Script
from backends.types import Chunk


class Play(ABC):
    """One request while it is answered. Never waits."""

    def __init__(self, script: Script | None) -> None:
        self._script = script or Script()

    @property
    @abstractmethod
    def num_active(self) -> int:
        """How many tokens or vectors the next round makes."""

    @property
    @abstractmethod
    def num_made(self) -> int:
        """Tokens or vectors so far."""

    @abstractmethod
    def open(self) -> Iterator[Chunk]:
        """What there is before the first round; the first chunk says that work has begun."""

    @abstractmethod
    def step(self) -> Iterator[Chunk]:
        """One round."""

    @property
    def done(self) -> bool:
        """Nothing is left to make."""
        return self.num_active == 0

    @property
    def is_fresh(self) -> bool:
        """Nothing was made yet."""
        return self.num_made == 0

    @property
    def delay_s(self) -> float | None:
        """The wait before the next round, where the script says one."""
        return self._script.first_delay_s if self.is_fresh else self._script.delay_s

    @property
    def failure(self) -> Failure | None:
        """What the script wants to happen instead of the next round."""
        failure = self._script.fail
        return failure if failure is not None and self.num_made >= failure.after_tokens else None

    @property
    def fails_at_once(self) -> bool:
        """Whether it fails before it has begun; a hang or a silent end begins first."""
        return self.failure is not None and self.failure.kind not in ("hang", "end")
