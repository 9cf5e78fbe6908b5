"""Which blocks of the KV cache are free. Ids only: tensors are the runner's, tables the sequences'. No torch."""

from __future__ import annotations


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens each; every block is free or in exactly one table."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and room in them, not {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(reversed(range(num_blocks)))
        self._is_free = bytearray(b"\x01" * num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks in no table."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def can_allocate(self, num_blocks: int) -> bool:
        """Whether so many are free."""
        return num_blocks <= len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks; the caller has asked `can_allocate`."""
        assert self.can_allocate(num_blocks), f"{num_blocks} blocks wanted, {len(self._free)} free"
        taken = [self._free.pop() for _ in range(num_blocks)]
        for block in taken:
            self._is_free[block] = 0
        return taken

    def grow(self, table: list[int], num_tokens: int) -> None:
        """Extend a block table until it covers `num_tokens`; the caller has asked `can_allocate`."""
        table += self.allocate(max(0, self.blocks_for(num_tokens) - len(table)))

    def free(self, table: list[int]) -> None:
        """Take back all blocks of a table, and empty it. What was freed last is reused first, its head before its tail:
        memory once written serves again before new memory is touched."""
        for block in reversed(table):
            assert not self._is_free[block], f"block {block} freed twice"
            self._is_free[block] = 1
            self._free.append(block)
        table.clear()
