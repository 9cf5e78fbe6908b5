"""curl, as people type it: streams, big bodies, a forgotten content type, packed answers, heads."""

from __future__ import annotations

import json
import subprocess

from tests.integration.front.front_server import CHAT, Front, eventually

BODY = {"model": "scripted", "messages": [{"role": "user", "content": "one two three"}]}


def curl(front: Front, path: str, *options: str, body: object = None) -> tuple[str, str]:
    """Heads and body of the answer."""
    sent = () if body is None else ("--data-binary", "@-")
    argv = ["curl", "--silent", "--show-error", "--max-time", "20", "--dump-header", "/dev/stderr", *options, *sent]
    text = None if body is None else json.dumps(body)
    done = subprocess.run([*argv, f"{front.url}{path}"], input=text, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stderr.lower(), done.stdout


def test_a_forgotten_content_type_is_no_matter(front: Front) -> None:
    """curl calls it a form then."""
    head, text = curl(front, CHAT, body=BODY)

    assert head.startswith("http/1.1 200")
    assert json.loads(text)["choices"][0]["message"]["content"] == "one two three"


def test_a_stream_is_shown_event_by_event(front: Front) -> None:
    head, text = curl(front, CHAT, "-N", body={**BODY, "stream": True})

    assert "content-type: text/event-stream" in head and "content-length" not in head
    assert all(line.startswith("data: ") for line in text.splitlines() if line)
    assert text.endswith("data: [DONE]\n\n")


def test_a_big_body_is_asked_for_first(front: Front) -> None:
    big = {**BODY, "messages": [{"role": "user", "content": "word " * 300_000}], "max_tokens": 1}
    head, text = curl(front, CHAT, "-H", "Expect: 100-continue", body=big)

    assert head.startswith("http/1.1 100 continue")
    assert "http/1.1 400" in head
    assert json.loads(text)["error"]["code"] == "context_length_exceeded"


def test_chunked_uploads_packed_answers_and_heads_work(front: Front) -> None:
    _, chunked = curl(front, CHAT, "-H", "Transfer-Encoding: chunked", "--compressed", body=BODY)
    head, nothing = curl(front, "/v1/models", "--head")

    assert json.loads(chunked)["object"] == "chat.completion"
    assert (head.startswith("http/1.1 200"), nothing.lower().startswith("http/1.1 200")) == (True, True)


def test_an_error_has_its_status_and_its_envelope(front: Front) -> None:
    head, text = curl(front, CHAT, body={**BODY, "model": "nope"})

    assert head.startswith("http/1.1 404")
    assert json.loads(text)["error"]["code"] == "model_not_found"


def test_a_tool_call_is_answered(front: Front) -> None:
    tool = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
    script = {"tool_calls": [{"name": "lookup", "arguments": ['{"city": ', '"Bern"}']}]}
    _, text = curl(front, CHAT, body={**BODY, "tools": [tool], "script": script})
    choice = json.loads(text)["choices"][0]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "lookup", "arguments": '{"city": "Bern"}'}


def test_interrupting_curl_ends_the_work(front: Front) -> None:
    endless = {**BODY, "stream": True, "script": {"tokens": ["word "], "eos": False, "delay_s": 0.02}}
    argv = ["curl", "--silent", "-N", "--data-binary", json.dumps(endless), f"{front.url}{CHAT}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"data: ")
        process.terminate()

    eventually(lambda: front.count("cancelled") == 1, "the work is over")
