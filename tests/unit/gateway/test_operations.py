"""What the control socket answers, asked without the socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from gateway.books import Books
from gateway.config import load_settings
from gateway.counting import Counter
from gateway.errors import NotFound
from gateway.limits import LimitOptions, Verdict
from gateway.operations import operations
from gateway.reload import Reloads
from gateway.state import State
from gateway.store import Store, StoreOptions
from gateway.tenants import AuthOptions, KeyRing, StaticKey


async def check(folder: Path, key_id: str | None, model: str) -> Verdict:
    """What a server that serves "served" alone says of a key for "served" and "gone" (None: its id)."""
    store = Store.open(StoreOptions(url=f"sqlite:///{folder}/laneway.db"))
    books = Books(store, LimitOptions(), Counter(), folder)
    async with books.open():
        own = StaticKey(key="sk-0123456789", models=("served", "gone"))
        keys = KeyRing(AuthOptions(key=(own,)), directory=books.directory)
        known = keys.find(own.key.encode())
        assert known is not None
        no_state = cast(State, None)  # another question's
        answers = operations(
            books, keys, no_state, Reloads(), lambda: load_settings(None), lambda model: model in ("served", "other")
        )
        return cast(Verdict, await answers["check"](key=known.id if key_id is None else key_id, model=model))


@pytest.mark.parametrize(
    ("model", "said"),
    [("served", None), ("gone", "no backend serves"), ("other", "may not use"), ("odd", "may not use")],
)
def test_a_dry_run_passes_only_for_a_model_that_is_served_and_that_the_key_may_use(
    tmp_path: Path, model: str, said: str | None
) -> None:
    verdict = asyncio.run(check(tmp_path, None, model))

    assert (verdict.allowed, verdict.code) == ((True, None) if said is None else (False, "model_not_found"))
    assert said is None or (said in str(verdict.message) and model in str(verdict.message))


def test_a_dry_run_of_nobody_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="key_unknown"):
        asyncio.run(check(tmp_path, "key_unknown", "served"))
