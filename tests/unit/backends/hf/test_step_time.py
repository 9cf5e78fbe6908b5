"""The step-time model on curves whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from backends.hf.step_time import Prior, StepTime

Curve = Callable[[int, int, int], float]


def cpu(tokens: int, attended: int, samples: int) -> float:
    """Two cores: a plateau up to 16 tokens, then compute-bound."""
    return 0.008 + 0.0006 * max(16, tokens) + 8e-8 * attended + 0.0005 * samples


def gpu(tokens: int, attended: int, samples: int) -> float:
    """A large GPU: almost everything is the fixed cost."""
    return 0.012 + 2e-6 * tokens + 1e-11 * attended + 1e-6 * samples


def attended(start: int, tokens: int) -> int:
    return tokens * start + tokens * (tokens + 1) // 2


def serve(model: StepTime, curve: Curve, steps: int, *, budget_s: float = 0.08, noise: float = 0.1) -> list[float]:
    """Prefill 4,000-token prompts beside a few decodes, each chunk as long as the model allows; the times it took."""
    rng = random.Random(0)
    start, times = 0, []
    for _ in range(steps):
        decodes = rng.randrange(8)
        before = (decodes, decodes * 300, decodes)
        chunk = min(max(1, model.max_tokens(budget_s, *before, start)), 4000 - start)
        step = (decodes + chunk, decodes * 300 + attended(start, chunk), decodes)
        seconds = curve(*step) * rng.uniform(1 - noise, 1 + noise)
        model.learn(*step, seconds)
        times.append(seconds)
        start = (start + chunk) % 4000
    return times


@pytest.mark.parametrize("curve", [cpu, gpu])
def test_chunks_soon_fill_the_budget_and_stay_within_it(curve: Curve) -> None:
    model = StepTime()

    times = serve(model, curve, 300)

    assert max(times[:10]) < 0.08 * 1.2, "the prior must be careful"
    settled = times[60:]
    assert max(settled) < 0.08 * 1.3
    if curve is cpu:  # the other one finishes its prompts in a step
        assert sorted(settled)[len(settled) // 2] > 0.08 * 0.8


def warm(model: StepTime, curve: Curve) -> None:
    """The shapes that an engine runs before it serves."""
    for decodes in range(1, 65):
        step = (decodes, decodes * 128, decodes)
        model.learn(*step, curve(*step))
    for chunk in range(16, 257, 16):
        for start in (0, 1024):
            step = (chunk, attended(start, chunk), 1)
            model.learn(*step, curve(*step))


def test_steps_that_are_all_as_long_as_the_budget_do_not_blur_what_a_step_is_made_of() -> None:
    model = StepTime()
    warm(model, cpu)

    serve(model, cpu, 3000)

    short = (42, attended(0, 38) + 4 * 300, 5)
    assert model.predict(*short) == pytest.approx(cpu(*short), rel=0.3)


def test_a_slow_spell_changes_the_pace_and_not_the_coefficients() -> None:
    model = StepTime()
    warm(model, cpu)
    before = model.coefficients

    serve(model, lambda *step: 2 * cpu(*step), 30)
    during = model.coefficients
    serve(model, cpu, 200)

    assert [now / then for now, then in zip(during, before, strict=True)] == pytest.approx([2.0] * 4, rel=0.25)
    assert [now / then for now, then in zip(model.coefficients, before, strict=True)] == pytest.approx(
        [1.0] * 4, rel=0.25
    )


@pytest.mark.parametrize(("curve", "chunk"), [(cpu, 96), (gpu, 3000)])
def test_predictions_are_close_where_there_was_work(curve: Curve, chunk: int) -> None:
    model = StepTime()
    warm(model, curve)
    serve(model, curve, 300)

    step = (4 + chunk, attended(1000, chunk) + 4 * 300, 4)
    assert model.predict(*step) == pytest.approx(curve(*step), rel=0.2)


def test_a_long_phase_of_decodes_does_not_forget_what_prefill_costs() -> None:
    model = StepTime()
    serve(model, cpu, 300)
    rng = random.Random(2)
    for _ in range(5000):
        rows = rng.randint(1, 16)  # on the plateau, where tokens are free
        model.learn(rows, rows * 300, rows, cpu(rows, rows * 300, rows) * rng.uniform(0.9, 1.1))

    chunk = model.max_tokens(0.08, 4, 4 * 300, 5, 0)

    assert 0.04 < cpu(4 + chunk, 4 * 300 + attended(0, chunk), 5) < 0.1


def test_a_machine_that_becomes_slower_is_followed() -> None:
    model = StepTime()
    serve(model, cpu, 200)

    times = serve(model, lambda *step: 3 * cpu(*step), 60)

    assert max(times[20:]) < 0.08 * 1.5


def test_decodes_alone_do_not_make_the_first_prompt_a_long_step() -> None:
    model = StepTime()
    rng = random.Random(3)
    for _ in range(3000):
        rows = rng.randint(1, 64)
        model.learn(rows, rows * 300, rows, cpu(rows, rows * 300, rows) * rng.uniform(0.9, 1.1))

    times = serve(model, cpu, 30)

    assert max(times) < 0.08 * 1.3


def test_one_wild_measurement_changes_little_and_is_forgotten() -> None:
    model = StepTime()
    serve(model, cpu, 200)
    step = (100, attended(500, 100), 1)
    before = model.predict(*step)

    model.learn(*step, 30.0)
    assert model.predict(*step) < 3 * before
    serve(model, cpu, 40)
    assert model.predict(*step) == pytest.approx(before, rel=0.3)


def test_coefficients_are_never_negative() -> None:
    rng = random.Random(1)
    model = StepTime()
    for _ in range(2000):
        tokens = rng.randint(1, 300)
        model.learn(tokens, rng.randint(tokens, 10**6), rng.randint(0, 16), rng.choice([0.0, 1e-5, 0.01, 1.0, 60.0]))
        assert min(model.coefficients) >= 0
        assert all(c < 1e6 for c in model.coefficients)


def test_the_prior_is_used_until_something_is_known() -> None:
    model = StepTime(Prior(step_s=0.01, token_s=0.001, attended_s=0.0, sample_s=0.002))

    assert model.predict(10, 55, 2) == pytest.approx(0.024)
    assert model.max_tokens(0.1, 10, 55, 3, 0) == pytest.approx(74, abs=1)


@pytest.mark.parametrize("start", [0, 1, 500, 30000])
@pytest.mark.parametrize("budget_s", [0.001, 0.02, 0.08, 1.0])
def test_the_longest_chunk_fits_and_one_token_more_does_not(start: int, budget_s: float) -> None:
    model = StepTime()
    model.learn(5000, 10**6, 1, model.predict(5000, 10**6, 1))
    before = (7, 4000, 8)

    chunk = model.max_tokens(budget_s, *before, start)

    def predict(n: int) -> float:
        return model.predict(before[0] + n, before[1] + attended(start, n), before[2])

    assert chunk == 0 or predict(chunk) <= budget_s + 1e-9
    assert predict(chunk + 1) > budget_s - 1e-9


def test_a_chunk_is_at_most_twice_what_was_ever_seen() -> None:
    model = StepTime(Prior(step_s=0.01, token_s=0.0, attended_s=0.0, sample_s=0.0))

    assert model.max_tokens(0.08, 1, 1, 1, 0) == 128
    model.learn(500, 1000, 1, 0.02)
    assert model.max_tokens(0.08, 1, 1, 1, 0) == 1000
    assert model.max_tokens(0.005, 1, 1, 1, 0) == 0
