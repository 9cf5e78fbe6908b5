from __future__ import annotations

import pytest

from backends.cap import answer_cap
from backends.errors import InvalidRequest
from backends.types import GenerateRequest, SamplingParams


def request(wanted: int | None, exact_cap: str | None = None) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=wanted)
    return GenerateRequest(request_id="r", route="chat", model="m", sampling=sampling, exact_cap=exact_cap)


@pytest.mark.parametrize(("wanted", "cap"), [(None, 7), (0, 0), (7, 7), (8, 7), (10**12, 7)])
def test_a_cap_is_cut_to_what_the_prompt_leaves(wanted: int | None, cap: int) -> None:
    assert answer_cap(request(wanted), prompt_tokens=3, limit=10) == cap


def test_an_exact_cap_that_does_not_fit_is_refused_under_the_clients_name() -> None:
    assert answer_cap(request(7, "max_output_tokens"), prompt_tokens=3, limit=10) == 7
    with pytest.raises(InvalidRequest, match=r"max_output_tokens is too large: 8.* 10 tokens.* 3") as caught:
        answer_cap(request(8, "max_output_tokens"), prompt_tokens=3, limit=10)
    assert (caught.value.param, caught.value.code) == ("max_output_tokens", None)
