"""Drives a real engine in the test's own thread, and the plain loop of single forwards that it must equal."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch

from backends.base import DEFAULT_LANE_RULES
from backends.fairness import FairQueue, LaneShare
from backends.hf.block_pool import BlockPool
from backends.hf.engine import Engine
from backends.hf.messages import Output, Outputs, Stats, Submit
from backends.hf.plan import Runner
from backends.hf.runner import BatchedRunner
from backends.hf.scheduler import Scheduler, SchedulerLimits
from backends.hf.sequence import Sequence
from backends.hf.step_time import StepTime
from backends.hf.torch_attention import TorchAttention
from backends.types import FinishReason

TIE = 1e-4  # a gap between the best two logits below which either token is right


@dataclass
class Reference:
    """Greedy tokens of a plain loop, and at which of them the best two were as good as equal."""

    prompt: list[int]
    tokens: list[int]
    ties: set[int]

    def agrees(self, found: Seq[int]) -> bool:
        """Equal, token for token, up to the first tie at which they part."""
        for i, (mine, theirs) in enumerate(zip(found, self.tokens, strict=True)):
            if mine != theirs:
                return i in self.ties
        return True


@torch.inference_mode()
def plain_greedy(model: Any, prompt: list[int], count: int) -> Reference:
    """`count` greedy tokens, each by one forward over everything before it."""
    tokens, ties = list(prompt), set()
    for i in range(count):
        best = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
        if float(best.values[0] - best.values[1]) < TIE:
            ties.add(i)
        tokens.append(int(best.indices[0]))
    return Reference(prompt, tokens[len(prompt) :], ties)


def prompts(count: int, longest: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Random prompts of 1 to `longest` tokens."""
    dice = random.Random(seed)
    return [[dice.randrange(vocab_size) for _ in range(dice.randint(1, longest))] for _ in range(count)]


@dataclass
class Answers:
    """What an engine said, by sequence id."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, Output] = field(default_factory=dict)
    began: list[int] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    def deliver(self, origin: object | None, message: Outputs | Stats) -> None:
        """An engine's `deliver`."""
        if isinstance(message, Stats):
            self.stats = message
            return
        for output in message.outputs:
            self.tokens.setdefault(output.id, []).extend(output.token_ids)
            if output.began:
                self.began.append(output.id)
            if output.finish_reason is not None or output.error is not None:
                assert output.id not in self.finishes, "a sequence ends once"
                self.finishes[output.id] = output


class Ticks:
    """A clock that moves a little at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.2
        return self.now


def make_engine(
    runner: Runner, answers: Answers, *, max_num_seqs: int = 16, max_batched_tokens: int = 64, max_model_len: int = 512
) -> Engine:
    """An engine whose steps are bounded by tokens alone."""
    limits = SchedulerLimits(
        max_num_seqs=max_num_seqs, max_batched_tokens=max_batched_tokens, max_step_s=1e9, max_model_len=max_model_len
    )
    step_time = StepTime()
    queue: FairQueue[Sequence] = FairQueue(
        {name: LaneShare(rule.priority, rule.floor) for name, rule in DEFAULT_LANE_RULES.items()}
    )
    scheduler = Scheduler(BlockPool(runner.num_blocks, runner.block_size), queue, step_time, limits)
    return Engine(runner, scheduler, step_time, answers.deliver, clock=Ticks())


def batched(model: Any, num_blocks: int, block_size: int) -> BatchedRunner:
    """The runner under test, in plain torch."""
    return BatchedRunner(model, TorchAttention(model.dtype, model.device), num_blocks, block_size)


def greedy(sequence_id: int, prompt: list[int], count: int, **fields: Any) -> Submit:
    """A submit of exactly `count` greedy tokens."""
    return Submit(sequence_id, prompt, max_tokens=count, temperature=0.0, **fields)


def run_staggered(engine: Engine, submits: list[Submit], dice: random.Random) -> None:
    """Submit in random order between steps, then step until all is done."""
    waiting = list(submits)
    dice.shuffle(waiting)
    for _ in range(10_000):
        for _ in range(dice.choice((0, 0, 1, 3))):
            if waiting:
                engine.submit("front", waiting.pop())
        if not engine.step() and not waiting:
            assert engine.num_live == 0
            return
    raise AssertionError("the engine does not come to an end")


def assert_complete(answers: Answers, references: list[Reference]) -> int:
    """Every answer is the reference's. Returns how many parted at a tie."""
    for i, reference in enumerate(references):
        assert answers.finishes[i].finish_reason is FinishReason.LENGTH
        assert reference.agrees(answers.tokens[i]), f"sequence {i}: {answers.tokens[i]} is not {reference.tokens}"
    return sum(answers.tokens[i] != reference.tokens for i, reference in enumerate(references))
