"""The start-up self-check: does a runner give what a plain forward of the model gives?

Three random sequences go through the runner in chunks, mixed with decodes, in scattered blocks. This is what makes "any
model" honest: some models ignore the attention setting and answer wrongly without a word.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

import torch
from torch import Tensor

from backends.hf.plan import Row, StepPlan
from backends.hf.sequence import Sequence, TokenParams

LENGTHS = (5, 23, 41)
# Root mean square of the difference over that of the logits' spread. Half precision is noisy on random tokens (0.07 in
# bfloat16 between two orders of the same sums); a wrong model is off by more, mostly by about 1.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 0.15}


class ForwardRunner(Protocol):
    """A runner that shows its logits."""

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        ...

    def forward(self, plan: StepPlan) -> Tensor:
        """Logits of the rows that sample."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence."""
        ...


class SelfCheck:
    """Expected logits, taken from the model before anything of it is changed."""

    def __init__(self, model: Any, vocab_size: int) -> None:
        dice = random.Random(0)
        self._texts = [[dice.randrange(vocab_size) for _ in range(length)] for length in LENGTHS]
        self._expected = [_plain_forward(model, text) for text in self._texts]

    def error(self, runner: ForwardRunner) -> float:
        """The worst relative error over the sequences. The runner has `check_blocks` blocks at least."""
        first, second, third = (self._sequence(i, runner.block_size) for i in range(len(self._texts)))
        # Chunks, a whole prompt and single tokens side by side; every sequence ends on its last token.
        plans = [
            [_row(first, 0, 3), _row(third, 0, 17)],
            [_row(first, 3, 1), _row(second, 0, 23), _row(third, 17, 8)],
            [_row(first, 4, 1), _row(third, 25, 16)],
        ]
        found: dict[int, Tensor] = {}
        for rows in plans:
            logits = runner.forward(StepPlan(rows=tuple(rows)))
            sampled = [row.sequence.id for row in rows if row.sample]
            found |= dict(zip(sampled, logits, strict=True))
        for sequence in (first, second, third):
            runner.forget(sequence)
        return max(_difference(found[i], expected) for i, expected in enumerate(self._expected))

    def _sequence(self, index: int, block_size: int) -> Sequence:
        blocks = list(range(check_blocks(block_size)))
        random.Random(1).shuffle(blocks)
        needed = _blocks_each(block_size)
        return Sequence(
            id=index,
            token_ids=list(self._texts[index]),
            num_prompt_tokens=len(self._texts[index]),
            params=TokenParams(max_tokens=1),
            block_table=blocks[index * needed : (index + 1) * needed],
        )


def check_blocks(block_size: int) -> int:
    """Blocks of cache that the check needs, some of them left between the sequences."""
    return _blocks_each(block_size) * len(LENGTHS) + 3


def _blocks_each(block_size: int) -> int:
    return -(-max(LENGTHS) // block_size)


def _row(sequence: Sequence, start: int, count: int) -> Row:
    return Row(sequence, start, count, start + count == sequence.num_tokens)


@torch.inference_mode()
def _plain_forward(model: Any, text: list[int]) -> Tensor:
    logits: Tensor = model(input_ids=torch.tensor([text], device=model.device), use_cache=False).logits[0, -1]
    return logits.float().cpu()


def _difference(found: Tensor, expected: Tensor) -> float:
    error = (found.float().cpu() - expected).square().mean().sqrt()
    spread = (expected - expected.mean()).square().mean().sqrt()
    value = float(error / spread.clamp_min(1e-6))
    return value if value == value else float("inf")  # NaN: no answer at all
