"""The sampler chooses what its parameters allow, with the right odds, row by row."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from backends.hf.sampler import NUCLEUS_CANDIDATES, noise, sample
from backends.hf.sequence import Sequence, TokenParams


def sequence(**params: object) -> Sequence:
    return Sequence(id=0, token_ids=[1, 2], num_prompt_tokens=2, params=TokenParams(max_tokens=9, **params))  # type: ignore[arg-type]


def drawn(logits: Tensor, count: int, **params: object) -> Counter[int]:
    rows = [sequence(seed=seed, **params) for seed in range(count)]
    return Counter(sample(logits.expand(count, -1).clone(), rows))


def chi_square(counts: Counter[int], probabilities: Tensor) -> float:
    total = sum(counts.values())
    return sum(float((counts[i] - total * p) ** 2 / (total * p)) for i, p in enumerate(probabilities.tolist()) if p > 0)


LOGITS = torch.linspace(2, -2, 32)[torch.randperm(32, generator=torch.Generator().manual_seed(3))]
CHI_SQUARE_31_999 = 61.1  # 31 degrees of freedom, 99.9 %


def test_temperature_zero_takes_the_best_token() -> None:
    assert sample(LOGITS.unsqueeze(0), [sequence(temperature=0.0)]) == [int(LOGITS.argmax())]


def test_tokens_come_with_the_odds_of_the_softmax() -> None:
    assert chi_square(drawn(LOGITS, 4000), LOGITS.softmax(-1)) < CHI_SQUARE_31_999


def test_temperature_flattens_the_odds() -> None:
    assert chi_square(drawn(LOGITS, 4000, temperature=2.0), (LOGITS / 2).softmax(-1)) < CHI_SQUARE_31_999


def test_top_k_draws_from_the_best_k_only() -> None:
    counts = drawn(LOGITS, 2000, top_k=4)

    best = LOGITS.topk(4).indices.tolist()
    assert set(counts) == set(best)
    assert chi_square(Counter({i: counts[t] for i, t in enumerate(best)}), LOGITS[best].softmax(-1)) < 16.3


def test_top_p_draws_from_the_smallest_set_that_holds_the_mass() -> None:
    ordered = LOGITS.softmax(-1).sort(descending=True)
    size = int((ordered.values.cumsum(-1) < 0.6).sum()) + 1

    assert set(drawn(LOGITS, 3000, top_p=0.6)) == set(ordered.indices[:size].tolist())


def test_top_p_zero_takes_the_best_token() -> None:
    assert set(drawn(LOGITS, 50, top_p=0.0)) == {int(LOGITS.argmax())}


def test_top_p_is_exact_where_the_nucleus_is_wider_than_the_candidates() -> None:
    flat = torch.zeros(4 * NUCLEUS_CANDIDATES)

    counts = drawn(flat, 3000, top_p=0.75)

    assert max(counts) >= NUCLEUS_CANDIDATES
    assert len(counts) > NUCLEUS_CANDIDATES


def test_min_p_drops_what_is_far_below_the_best() -> None:
    probabilities = LOGITS.softmax(-1)
    allowed = (probabilities >= 0.3 * probabilities.max()).nonzero().flatten().tolist()

    assert set(drawn(LOGITS, 3000, min_p=0.3)) == set(allowed)
    assert set(drawn(LOGITS, 3000, min_p=0.3, top_p=0.999)) == set(allowed)


def test_a_seeded_row_does_not_depend_on_its_neighbours() -> None:
    row = sequence(seed=7)

    alone = sample(LOGITS.unsqueeze(0).clone(), [row])
    beside = sample(LOGITS.expand(9, -1).clone(), [*(sequence(seed=i) for i in range(8)), row])

    assert beside[-1] == alone[0]


def test_choices_of_one_seed_differ_and_repeat() -> None:
    rows = [sequence(seed=1, choice=choice) for choice in range(16)]

    first = sample(LOGITS.expand(16, -1).clone(), rows)

    assert len(set(first)) > 4
    assert sample(LOGITS.expand(16, -1).clone(), rows) == first


def test_noise_is_uniform_and_depends_on_every_part() -> None:
    numbers = torch.tensor([noise(TokenParams(max_tokens=1, seed=s), p) for s in range(40) for p in range(50)])

    assert 0 < float(numbers.min()) < float(numbers.max()) < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.03
    assert len(set(numbers.tolist())) == 2000
    assert noise(TokenParams(max_tokens=1, seed=1, choice=1), 0) != noise(TokenParams(max_tokens=1, seed=1), 0)
    assert noise(TokenParams(max_tokens=1, seed=-1), 0) == noise(TokenParams(max_tokens=1, seed=2**64 - 1), 0)


def test_end_tokens_are_not_chosen_before_min_tokens() -> None:
    best = int(LOGITS.argmax())

    held = sequence(temperature=0.0, min_tokens=1, stop_token_ids=frozenset([best]))

    assert sample(LOGITS.unsqueeze(0).clone(), [held]) != [best]
    held.token_ids.append(5)
    assert sample(LOGITS.unsqueeze(0).clone(), [held]) == [best]


def test_end_tokens_are_held_back_also_in_what_a_float32_forward_made() -> None:
    with torch.inference_mode():
        logits = LOGITS.unsqueeze(0) + 0
    best = int(LOGITS.argmax())

    assert sample(logits, [sequence(temperature=0.0, min_tokens=1, stop_token_ids=frozenset([best]))]) != [best]
