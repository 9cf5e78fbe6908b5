"""The text of virtual keys: what is one, what is kept of it, and which models it allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.virtual_keys import (
    ALPHABET,
    VirtualKey,
    checksum,
    common_models,
    digest,
    hint,
    is_model_pattern,
    is_well_formed,
    mint,
)

TEXTS = st.text(ALPHABET, min_size=32, max_size=32)
NAMES = st.text("ab*", min_size=1, max_size=4).filter(is_model_pattern)
LISTS = st.none() | st.lists(NAMES, max_size=4)


@pytest.mark.parametrize(
    ("text", "sum_of_it"),
    [
        (b"", b"000000"),
        (b"00000000000000000000000000000000", b"2wjyrI"),
        (b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", b"3i8aJj"),
        (b"0123456789ABCDEFGHIJKLMNOPQRSTUV", b"1ggZdL"),
    ],
)
def test_the_checksum_is_crc_32_in_base_62(text: bytes, sum_of_it: bytes) -> None:
    assert checksum(text) == sum_of_it


def test_what_is_minted_is_well_formed_and_never_the_same() -> None:
    minted = [mint() for _ in range(200)]

    assert all(is_well_formed(secret.encode()) and len(secret) == 41 for secret in minted)
    assert len(set(minted)) == 200


@given(TEXTS, st.integers(0, 37), st.sampled_from(ALPHABET))
def test_one_wrong_character_is_told_without_a_look_up(text: str, place: int, char: str) -> None:
    right = text + checksum(text.encode()).decode()
    wrong = right[:place] + char + right[place + 1 :]

    assert is_well_formed(f"lw-{right}".encode())
    assert is_well_formed(f"lw-{wrong}".encode()) == (wrong == right)


@pytest.mark.parametrize(
    "secret",
    [
        b"",
        b"lw-",
        b"sk-00000000000000000000000000000000" + b"2wjyrI",
        b"lw-00000000000000000000000000000000" + b"2wjyrI\n",
        b" lw-00000000000000000000000000000000" + b"2wjyrI",
        b"lw-0000000000000000000000000000000" + b"2wjyrI",
        b"lw-" + "é".encode() * 16 + b"2wjyrI",
        b"lw-\xff" + bytes(100),
    ],
)
def test_garbage_is_not_well_formed(secret: bytes) -> None:
    assert not is_well_formed(secret)


@given(st.binary(max_size=60))
def test_any_bytes_can_be_asked_about(secret: bytes) -> None:
    assert not is_well_formed(secret)


def test_a_digest_depends_on_the_pepper_and_is_hmac_sha_256() -> None:
    assert digest(b"Hi There", b"\x0b" * 20).hex() == (  # RFC 4231, test case 1
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
    )
    assert digest(b"Hi There", b"\x0c" * 20) != digest(b"Hi There", b"\x0b" * 20)


def test_a_hint_hides_most_of_the_secret() -> None:
    assert hint("lw-AbCd0000000000000000000000000000efwxyz") == "lw-AbCd…wxyz"


@pytest.mark.parametrize(
    ("models", "model", "may"),
    [
        (None, "gpt-4", True),
        ((), "gpt-4", False),
        (("gpt-4",), "gpt-4", True),
        (("gpt-4",), "gpt-4o", False),
        (("gpt-*",), "gpt-4o", True),
        (("gpt-*",), "GPT-4o", False),
        (("*",), "anything", True),
        (("llama", "gpt-*"), "gpt-", True),
    ],
)
def test_a_key_may_use_the_models_that_it_names(models: tuple[str, ...] | None, model: str, may: bool) -> None:
    assert VirtualKey(id="key_1", models=models).may_use(model) == may


@given(LISTS, LISTS, st.text("ab", max_size=4))
def test_two_lists_allow_together_what_each_allows(
    some: list[str] | None, others: list[str] | None, model: str
) -> None:
    def may(models: list[str] | tuple[str, ...] | None) -> bool:
        return VirtualKey(id="key_1", models=None if models is None else tuple(models)).may_use(model)

    assert may(common_models(some, others)) == (may(some) and may(others))


@pytest.mark.parametrize("text", ["", "a*b", "**", "a\nb", "x" * 201])
def test_what_no_model_can_be_called_is_no_pattern(text: str) -> None:
    assert not is_model_pattern(text)
