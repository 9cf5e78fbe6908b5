"""Asks a server over plain HTTP, and sees what clients hide: raw bytes, headers, and who still waits after leaving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from gateway.conformance.reply import Reply, expect, short
from gateway.conformance.target import Target
from gateway.conformance.vectors import CHAT, COMPLETIONS, EMBEDDINGS, LIMITS, RESPONSES

PROMPT = "Count from one to five in words."
MOST_TOKENS = 16  # of an answer that no script bounds


class Probe:
    """The means of one case: requests to one target, over connections of its own."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.asked: str | None = None
        self.reply: Reply | None = None
        self.replies: list[Reply] = []
        self._client = httpx.AsyncClient(
            base_url=target.address,
            timeout=target.timeout_s,
            headers={} if target.api_key is None else {"authorization": f"Bearer {target.api_key}"},
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    @property
    def model(self) -> str:
        """Who is asked."""
        return self.target.model

    @property
    def scripted(self) -> bool:
        """Whether the server answers as the field `script` says. Where it does not, a natural answer must do."""
        return self.target.scripted

    async def send(
        self,
        route: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str | None] | None = None,
    ) -> Reply:
        """One request and its whole answer, whatever it is. A header that is None is left out."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = self._client.build_request(method, route, content=content)
        if isinstance(body, Mapping):
            request.headers["content-type"] = "application/json"
        for name, value in (headers or {}).items():
            if value is None:
                request.headers.pop(name, None)
            else:
                request.headers[name] = value
        self.asked, self.reply = f"{method} {route} {shown(content)}".rstrip(), None
        response = await self._client.send(request)
        stream = response.extensions["network_stream"]
        reply = Reply(response.status_code, response.headers, response.content, stream.get_extra_info("client_addr"))
        self.reply = reply
        self.replies.append(reply)
        return reply

    async def chat(self, said: object = PROMPT, *, script: Mapping[str, Any] | None = None, **fields: Any) -> Reply:
        """A chat that must come through. `said` is what the user says, or all messages."""
        return await self._through(CHAT, self.chat_body(said, script=script, **fields))

    async def complete(
        self, prompt: object = "abc", *, script: Mapping[str, Any] | None = None, **fields: Any
    ) -> Reply:
        """A completion that must come through."""
        return await self._through(COMPLETIONS, self.body("max_tokens", {"prompt": prompt} | fields, script))

    async def respond(self, given: object = "hi", *, script: Mapping[str, Any] | None = None, **fields: Any) -> Reply:
        """A response that must come through."""
        return await self._through(RESPONSES, self.body("max_output_tokens", {"input": given} | fields, script))

    async def embed(self, given: object, *, script: Mapping[str, Any] | None = None, **fields: Any) -> Reply:
        """Vectors that must come through."""
        return await self._through(EMBEDDINGS, self.embedding_body(given, script=script, **fields))

    def chat_body(
        self, said: object = PROMPT, *, script: Mapping[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """The body of a chat."""
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        return self.body("max_tokens", {"messages": messages} | fields, script)

    def embedding_body(
        self, given: object, *, script: Mapping[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """The body of a request for vectors."""
        scripted = {"script": script} if script is not None and self.scripted else {}
        return {"model": self.target.embedding_model or self.model, "input": given, **fields, **scripted}

    def body(self, limit: str, fields: Mapping[str, Any], script: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A body with the script where the server reads it. A real model is held to a short answer by `limit`."""
        whole = {"model": self.model, **fields}
        if self.scripted:
            return whole if script is None else whole | {"script": script}
        return whole if set(LIMITS) & set(whole) else whole | {limit: MOST_TOKENS}

    async def leave(self, route: str, body: Mapping[str, Any], *, after_s: float) -> None:
        """Ask, and close the connection after a while, whatever has come by then."""
        self.asked = f"POST {route} {shown(json.dumps(body).encode())}, closed after {after_s:g} s"
        try:
            async with asyncio.timeout(after_s):
                await self._client.post(route, json=body)
        except TimeoutError:
            pass

    async def _through(self, route: str, body: Mapping[str, Any]) -> Reply:
        reply = await self.send(route, body)
        expect(reply.status == 200, "the status is 200")
        right = "text/event-stream" if body.get("stream") else "application/json"
        expect(reply.content_type.startswith(right), f"the content type is {right}", reply.content_type)
        return reply


def shown(content: bytes | None) -> str:
    """A body as a report shows it."""
    return short((content or b"")[:4096].decode("utf-8", "backslashreplace"))
