"""The parts of the supervisor that need no process: back-off and pulse."""

from __future__ import annotations

from pathlib import Path

from gateway.supervisor import Backoff, Pulse


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=1, longest_s=5, stable_s=60)

    assert [backoff.next(lived_s=0) for _ in range(5)] == [1, 2, 4, 5, 5]


def test_a_stable_life_starts_the_waits_anew() -> None:
    backoff = Backoff(first_s=1, longest_s=5, stable_s=60)
    for _ in range(3):
        backoff.next(lived_s=59)

    assert backoff.next(lived_s=60) == 1
    assert backoff.next(lived_s=0) == 2


def test_waits_stay_at_the_longest_however_often_it_fails() -> None:
    backoff = Backoff(first_s=1, longest_s=5, stable_s=60)

    assert {backoff.next(lived_s=0) for _ in range(5000)} == {1, 2, 4, 5}


def test_a_pulse_that_stands_still_is_a_hang(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    pulse = Pulse(beat, hang_after_s=3)
    beat.write_bytes(b"1")

    assert [pulse.is_hung(1) for _ in range(4)] == [False, False, False, True]


def test_a_pulse_that_moves_is_no_hang(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    pulse = Pulse(beat, hang_after_s=2)

    for number in range(10):
        beat.write_text(str(number))
        assert not pulse.is_hung(1)


def test_no_pulse_is_expected_before_the_first(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "beat", hang_after_s=2)

    assert not any(pulse.is_hung(1) for _ in range(10))
    assert not pulse.has_beaten


def test_a_new_process_does_not_inherit_the_pulse_of_the_one_before(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    pulse = Pulse(beat, hang_after_s=2)
    beat.write_bytes(b"1")
    pulse.is_hung(1)

    pulse.reset()

    assert not beat.exists()
    assert not any(pulse.is_hung(1) for _ in range(10))
