"""A thousand clients that leave a real server at random moments, and what they leave behind: nothing."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from tests.integration.served import IN_TIME_S, Serve, eventually
from tests.integration.tiny_served import FRONT, MODEL, complete, figures, is_empty, settings

NUM_CLIENTS, AT_ONCE = 1000, 50
ROWS = 16  # so that most of those who are there at once wait
LONGEST_PROMPT = 6000  # tokens, a letter each: many steps of prefill


class Plan(Struct, frozen=True):
    """What a client asks for, and when it leaves: in the middle of its body, or when it has read `num_lines` of the
    answer or waited for `stay_s`, whatever comes first. `is_rude`: it resets the connection.
    """

    path: str
    body: bytes
    sends_all: bool
    num_lines: int
    stay_s: float
    is_rude: bool


def plan(dice: random.Random) -> Plan:
    """Any client."""
    long = dice.random() < 0.25
    text = "".join(dice.choices("abcdefgh ", k=dice.randint(1000, LONGEST_PROMPT) if long else dice.randint(1, 60)))
    is_chat = dice.random() < 0.5
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
    is_stream = dice.random() < 0.6
    fields |= {"model": MODEL, "stream": is_stream, "n": dice.choice((1, 1, 1, 3)), "seed": 1}
    fields |= {"max_tokens": dice.choice((1, 30, 5000)), "ignore_eos": True}
    return Plan(
        path="/v1/chat/completions" if is_chat else "/v1/completions",
        body=json.dumps(fields).encode(),
        sends_all=dice.random() < 0.95,
        num_lines=dice.choice((1, 2, 20, 60)),
        stay_s=dice.choice((0, 0.02, 0.2, 5 if is_stream else 0.5)) * dice.random(),
        is_rude=dice.random() < 0.5,
    )


async def visit(port: int, plan: Plan) -> str:
    """Be such a client. Returns where it was when it left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {plan.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(plan.body)}\r\n\r\n".encode())
    writer.write(plan.body if plan.sends_all else plan.body[: len(plan.body) // 2])
    await writer.drain()
    lines = 0
    try:
        async with asyncio.timeout(plan.stay_s):
            while lines < plan.num_lines and await reader.readline():
                lines += 1
    except TimeoutError:
        pass
    if plan.is_rude:
        writer.transport.abort()
    writer.close()
    if not plan.sends_all:
        return "sending"
    return "reading" if lines else "waiting"


async def visit_all(port: int, plans: list[Plan]) -> Counter[str]:
    """All of them, some at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(plan: Plan) -> str:
        async with room, asyncio.timeout(IN_TIME_S):
            return await visit(port, plan)

    return Counter(await asyncio.gather(*(one(plan) for plan in plans)))


def has_clients(front: psutil.Process) -> bool:
    """Whether it has a socket open beside the one it listens on."""
    return any(socket.status != psutil.CONN_LISTEN for socket in front.net_connections("inet"))


def test_a_thousand_cancels_at_random_moments_leave_nothing_behind(serve: Serve, tiny_llama_dir: Path) -> None:
    served = serve(settings(tiny_llama_dir, max_num_seqs=ROWS))
    address, front = served.address, served.child(FRONT)
    before = complete(address).json()["choices"]
    dice = random.Random(20)

    left = asyncio.run(visit_all(int(address.rsplit(":", 1)[1]), [plan(dice) for _ in range(NUM_CLIENTS)]))

    assert min(left["waiting"], left["reading"]) > 100
    eventually(lambda: is_empty(figures(address)), "nobody runs, waits or holds blocks")
    eventually(lambda: not has_clients(front), "no socket is left")
    steps = figures(address)["laneway_engine_steps_total"]
    assert complete(address).json()["choices"] == before

    def is_empty_since() -> bool:
        found = figures(address)
        return found["laneway_engine_steps_total"] > steps and is_empty(found)

    eventually(is_empty_since, "the same, told after one more answer")
    statuses = re.findall(r'"message":"POST \S+ (\d+)"', served.log)
    assert set(statuses) == {"200", "499"}
    assert "Traceback" not in served.log
