"""Changes while serving: of the configuration by SIGHUP, of keys, limits and prices in the store. Nobody is cut off."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx

from gateway.accounts import Accounts, NewKey
from gateway.rules import Scope
from gateway.store import Store, StoreOptions
from gateway.verify import verify
from tests.integration.served import IN_TIME_S, eventually

if TYPE_CHECKING:
    from tests.integration.served import Serve, Served

CHAT = "/v1/chat/completions"
STAYS = "sk-stays-all-the-time"
NUM_CALLERS = 12
NUM_ROUNDS = 5


def config(*keys: str, max_queue: int = 1000, models: str = "scripted", more: str = "") -> str:
    listed = ", ".join(f'"{key}"' for key in (STAYS, *keys))
    return (
        f"[server]\nport = 0\n[auth]\nkeys = [{listed}]\n[lanes.batch]\npriority = 2\nmax_queue = {max_queue}\n"
        f'[backends.test]\ntype = "scripted"\nmodels = ["{models}"]\n{more}'
    )


def reload(served: Served, toml: str) -> None:
    served.config.write_text(toml, encoding="utf-8")
    served.process.send_signal(signal.SIGHUP)


def store_of(served: Served) -> Store:
    return Store.open(StoreOptions(url=f"sqlite:///{served.config.parent}/laneway.db"))


def status(served: Served, key: str, **headers: str) -> int:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    headers |= {"authorization": f"Bearer {key}"}
    return httpx.post(f"{served.address}{CHAT}", json=body, headers=headers, timeout=IN_TIME_S).status_code


class Callers:
    """Call without a pause, streamed and whole, over connections that are kept and new ones."""

    def __init__(self, address: str, keys: list[str]) -> None:
        self._address, self._keys = address, keys
        self._stopping = asyncio.Event()
        self.wrong: list[str] = []
        self.num_whole = 0

    async def run_while(self, work: Callable[[], None]) -> None:
        """Until `work`, in a thread of its own, is done."""
        async with asyncio.TaskGroup() as group:
            for number in range(NUM_CALLERS):
                group.create_task(self._call_on(self._keys[number % len(self._keys)], keeps=number % 3 > 0))
            await asyncio.to_thread(work)
            self._stopping.set()

    async def _call_on(self, key: str, *, keeps: bool) -> None:
        headers = {"authorization": f"Bearer {key}"} | ({} if keeps else {"connection": "close"})
        async with httpx.AsyncClient(base_url=self._address, headers=headers, timeout=IN_TIME_S) as client:
            stream = False
            while not self._stopping.is_set():
                stream = not stream
                await self._call(client, stream)

    async def _call(self, client: httpx.AsyncClient, stream: bool) -> None:
        script = {"tokens": ["a"] * 10, "delay_s": 0.01}
        body: dict[str, Any] = {"model": "scripted", "messages": [], "stream": stream, "script": script}
        body["messages"] = [{"role": "user", "content": "hi"}]
        try:
            reply = await client.post(CHAT, json=body)
        except httpx.HTTPError as error:
            self.wrong.append(repr(error))
            return
        is_whole = reply.text.endswith("data: [DONE]\n\n") if stream else "a" * 10 in reply.text
        if reply.status_code == 200 and is_whole and "error" not in reply.text:
            self.num_whole += 1
        else:
            self.wrong.append(reply.text)


def test_reloads_and_changes_of_keys_under_load_cut_nobody_off(serve: Serve) -> None:
    """BerriAI/litellm#22247: what is evicted or reloaded closes clients that are in use."""
    served = serve(config())
    with closing(store_of(served)) as store:
        accounts = Accounts(store, "cli:test")
        lasting = accounts.create_key(NewKey(tenant="acme")).secret
        callers = Callers(served.address, [STAYS, lasting])

        def change_all() -> None:
            for number in range(NUM_ROUNDS):
                fresh = f"sk-fresh-number-{number}"
                reload(served, config(fresh, max_queue=number))
                made = accounts.create_key(NewKey(tenant="bolt", rpm=5))
                accounts.set_limit(Scope("tenant", "acme"), "tokens", 10**9 + number, period="day")
                accounts.set_price("scripted", number, number, number)
                assert status(served, made.secret) == 200
                accounts.revoke_key(made.row.id)
                assert status(served, made.secret) == 401
                eventually(lambda fresh=fresh: status(served, fresh) == 200, "the new key of the config is known")  # type: ignore[misc]
                assert status(served, "sk-fresh-number-" + str(number - 1)) == 401

        asyncio.run(callers.run_while(change_all))

        assert callers.wrong == []
        assert callers.num_whole > NUM_CALLERS
        assert served.end() == 0
        assert verify(store).is_clean


def test_a_wrong_configuration_changes_nothing_and_the_next_front_starts_with_the_last_good_one(serve: Serve) -> None:
    served = serve(config("sk-first-of-the-keys"))
    front = served.child("gateway.front")

    reload(served, config("sk-second-of-the-keys", models="other"))
    eventually(lambda: status(served, "sk-second-of-the-keys") == 200, "the new key is known")
    reload(served, "[auth\n")
    eventually(lambda: "the configuration is not reloaded" in served.log, "it is told")
    kept = [status(served, key) for key in ("sk-first-of-the-keys", "sk-second-of-the-keys")]
    front.kill()
    eventually(lambda: "start 2 follows" in served.log, "a front follows")
    eventually(lambda: status(served, "sk-second-of-the-keys") == 200, "it knows the last good configuration")

    assert kept == [401, 200]
    assert "backends.test.models changed; it takes effect after a restart" in served.log
    assert "sk-second" not in served.log


def test_a_reload_waits_for_no_webhook(serve: Serve) -> None:
    """An operator's endpoint that takes events and never answers must not hold up every stream."""
    with socket.create_server(("127.0.0.1", 0)) as endpoint:
        endpoint.settimeout(IN_TIME_S)
        hook = f'[limits]\nwebhook_url = "http://127.0.0.1:{endpoint.getsockname()[1]}/hook"\n'
        served = serve(config(more=hook))
        with closing(store_of(served)) as store:
            accounts = Accounts(store, "cli:test")
            made = accounts.create_key(NewKey(tenant="acme"))
            accounts.set_limit(Scope("tenant", "acme"), "tokens", 1, period="day", mode="soft")
        assert status(served, made.secret) == 200
        with endpoint.accept()[0]:
            reload(served, config("sk-fresh-number-1", more=hook))
            eventually(lambda: status(served, "sk-fresh-number-1") == 200, "the new key is known")
            headers = {"authorization": f"Bearer {STAYS}"}
            metrics = httpx.get(f"{served.address}/metrics", headers=headers, timeout=IN_TIME_S).text

    lags = re.findall(r'^laneway_loop_lag_seconds_(?:bucket\{le="1.0"\}|count) (\S+)', metrics, re.MULTILINE)
    assert lags[0] == lags[1], "the event loop stood still for more than a second"


def test_the_last_key_cannot_be_taken_out_while_serving(serve: Serve) -> None:
    """Neither a front that runs nor the one after it may be open to those whom a key kept out."""
    served = serve(config())
    reload(served, config().replace("[auth]", "").replace(f'keys = ["{STAYS}"]', ""))
    eventually(lambda: "the last key cannot be taken out" in served.log, "refused")
    served.child("gateway.front").kill()
    eventually(lambda: httpx.get(f"{served.address}/ready", timeout=IN_TIME_S).status_code == 200, "another front")

    assert (status(served, "anything"), status(served, STAYS)) == (401, 200)


def test_the_last_key_of_the_config_may_go_when_the_store_has_held_one(serve: Serve) -> None:
    served = serve(config())
    with closing(store_of(served)) as store:
        made = Accounts(store, "cli:test").create_key(NewKey(tenant="acme"))
    reload(served, config().replace("[auth]", "").replace(f'keys = ["{STAYS}"]', ""))
    eventually(lambda: status(served, STAYS) == 401, "taken out")

    assert status(served, made.secret) == 200
