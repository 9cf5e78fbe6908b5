"""Pages of lists: as many rows as asked for, in a fixed order, and where the next page begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from msgspec import Struct

from gateway.api.admin.shapes import PageQuery

RowT = TypeVar("RowT")


class Page(Struct, Generic[RowT], frozen=True, kw_only=True):
    """Some rows of a list. `next` is the `after` of the page that follows, null at the end."""

    data: list[RowT]
    next: str | None = None


def page(rows: Iterable[RowT], place: Callable[[RowT], str], query: PageQuery) -> Page[RowT]:
    """The page asked for, of rows in the order of their places, which are unique.

    A place is what the cursor holds, so that a row that goes away between two pages takes none of the others along.
    """
    after = query.after or ""
    left = sorted((row for row in rows if place(row) > after), key=place)
    shown = left[: query.limit]
    return Page(data=shown, next=place(shown[-1]) if len(left) > len(shown) else None)


def place_in_time(at: int, name: str) -> str:
    """A place by an instant, then by an id."""
    return f"{at:012d}:{name}"
