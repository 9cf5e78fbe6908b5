"""Blocks of the KV cache: each is free or in one table."""

from __future__ import annotations

import pytest

from backends.hf.block_pool import BlockPool


def test_a_table_grows_by_whole_blocks_and_only_when_it_must() -> None:
    pool = BlockPool(num_blocks=4, block_size=8)
    table: list[int] = []

    pool.grow(table, 1)
    assert len(table) == 1
    pool.grow(table, 8)
    assert len(table) == 1
    pool.grow(table, 9)
    assert len(table) == 2
    assert pool.num_free == 2


def test_no_block_is_given_twice_and_all_come_back() -> None:
    pool = BlockPool(num_blocks=7, block_size=4)
    first, second = pool.allocate(3), pool.allocate(4)

    assert sorted(first + second) == list(range(7))
    assert not pool.can_allocate(1)
    pool.free(first)
    assert first == []
    assert pool.num_free == 3
    pool.free(second)
    assert sorted(pool.allocate(7)) == list(range(7))


def test_warm_blocks_serve_again_before_new_ones_are_touched() -> None:
    pool = BlockPool(num_blocks=9, block_size=1)
    table = pool.allocate(3)
    used = list(table)

    pool.free(table)

    assert pool.allocate(3) == used


def test_freeing_a_block_twice_is_caught() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    table = pool.allocate(1)
    again = list(table)
    pool.free(table)

    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(again)


def test_asking_for_more_than_is_free_is_caught() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)

    assert not pool.can_allocate(3)
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 free"):
        pool.allocate(3)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0)])
def test_a_pool_without_room_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="a pool needs blocks"):
        BlockPool(num_blocks, block_size)
