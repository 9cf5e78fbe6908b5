"""Option tables to Structs: every error names the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from backends.errors import ConfigError
from backends.options import convert


class Tls(Struct, frozen=True):
    cert: str
    key: str = ""


class Example(Struct, frozen=True, kw_only=True):
    size: Annotated[int, Meta(ge=1, le=9)] = 1
    share: Annotated[float, Meta(gt=0, lt=1.5)] = 0.5
    memory: Annotated[int, Meta(ge=1024)] | Literal["auto"] = "auto"
    dtype: Literal["auto", "bf16"] = "auto"
    limit: Annotated[int, Meta(ge=1)] | None = None
    names: Annotated[tuple[Annotated[str, Meta(min_length=2)], ...], Meta(min_length=1)] = ("ab",)
    tls: Tls | None = None
    lanes: dict[str, Tls] = {}
    flag: bool = False

    def __post_init__(self) -> None:
        if self.flag and self.limit is None:
            raise ValueError("flag needs limit")


def _problem(table: Mapping[str, Any], *, strict: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        convert(table, Example, "backends.local", strict=strict)
    return str(caught.value)


def test_a_table_becomes_a_struct_and_whole_numbers_serve_as_floats() -> None:
    table = {"size": 3, "share": 1, "memory": 2048, "names": ["one", "two"], "tls": {"cert": "c"}, "limit": 4}

    assert convert(table, Example, "") == Example(
        size=3, share=1.0, memory=2048, names=("one", "two"), tls=Tls("c"), limit=4
    )


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"size": 0}, "size: 0 is out of range; allowed: >= 1 and <= 9"),
        ({"size": 10**30}, "size: 1000000000000000000000000000000 is out of range; allowed: >= 1 and <= 9"),
        ({"size": "many"}, 'size: "many" does not fit; allowed: a whole number >= 1 and <= 9'),
        ({"size": 2.5}, "size: 2.5 does not fit; allowed: a whole number >= 1 and <= 9"),
        ({"size": True}, "size: true does not fit; allowed: a whole number >= 1 and <= 9"),
        ({"share": 0}, "share: 0 is out of range; allowed: > 0 and < 1.5"),
        ({"share": float("nan")}, "share: nan is out of range; allowed: > 0 and < 1.5"),
        ({"memory": 5}, 'memory: 5 is out of range; allowed: >= 1024 or "auto"'),
        ({"memory": "all"}, 'memory: "all" does not fit; allowed: a whole number >= 1024 or "auto"'),
        ({"dtype": "int4"}, 'dtype: "int4" does not fit; allowed: "auto" or "bf16"'),
        ({"limit": 0}, "limit: 0 is out of range; allowed: >= 1"),
        ({"names": "ab"}, 'names: "ab" does not fit; allowed: an array (at least 1 items) of text'),
        ({"names": []}, "names: an array of 0 does not fit; allowed: an array (at least 1 items) of text"),
        ({"names": ["ab", "c"]}, 'names[1]: "c" does not fit; allowed: text (at least 2 characters)'),
        ({"tls": {"key": "k"}}, "tls.cert: missing; allowed: text"),
        ({"tls": "on"}, 'tls: "on" does not fit; allowed: a table'),
        ({"lanes": {"fast": {"cert": 1}}}, "lanes.fast.cert: 1 does not fit; allowed: text"),
        ({"flag": "yes"}, 'flag: "yes" does not fit; allowed: true or false'),
        ({"sizes": 1}, "sizes: unknown option; known: size, share"),
        ({"tls": {"cert": "c", "cart": "x"}}, "tls.cart: unknown option; known: cert, key (did you mean cert?)"),
    ],
)
def test_a_problem_names_the_field_the_value_and_what_is_allowed(table: Mapping[str, Any], problem: str) -> None:
    assert _problem(table).startswith(f"backends.local.{problem}")


def test_all_problems_are_told_at_once_one_a_line() -> None:
    lines = _problem({"size": 0, "dtype": "x", "what": 1}).splitlines()

    assert [line.split(":", 1)[0].rsplit(".", 1)[1] for line in lines] == ["what", "size", "dtype"]


def test_what_a_struct_refuses_as_a_whole_is_told_with_its_path() -> None:
    assert _problem({"flag": True}) == "backends.local: flag needs limit"


def test_a_secret_is_never_shown_and_a_long_value_is_cut() -> None:
    assert "hunter2" not in _problem({"tls": {"cert": "c", "key": ["hunter2"]}})
    assert "hunter2" not in _problem({"size": "redis://user:hunter2@host"})
    assert len(_problem({"dtype": "x" * 10_000})) < 300


def test_without_a_path_the_field_stands_alone() -> None:
    with pytest.raises(ConfigError, match=r"^size: 0 is out of range"):
        convert({"size": 0}, Example, "")


def test_values_from_the_environment_may_be_text() -> None:
    table = {"size": "3", "share": "0.25", "flag": "true", "limit": "7", "memory": "4096"}

    made = convert(table, Example, "", strict=False)

    assert (made.size, made.share, made.flag, made.limit, made.memory) == (3, 0.25, True, 7, 4096)
    assert "size" in _problem({"size": "zero"}, strict=False)
