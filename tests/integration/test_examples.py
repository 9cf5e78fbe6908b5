"""Every example runs against a real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backends.registry import backend_class, convert_options
from gateway.config import ServerOptions, load_settings
from tests.integration.example import EXAMPLES, run_example
from tests.integration.served import Serve


def test_the_streamed_chat_prints_the_answer_and_its_counts(serve: Serve) -> None:
    printed = run_example("chat.py", "one two three", address=serve().address)

    assert printed.startswith("one two three\n[3 prompt tokens, ")


def test_the_asynchronous_chats_all_answer(serve: Serve) -> None:
    printed = run_example("chat_async.py", address=serve().address)

    assert printed.count("What is the capital of France?") == 2


def test_the_responses_print_their_answers_and_pass_the_history_on(serve: Serve) -> None:
    printed = run_example("responses.py", "one two three", address=serve().address)

    first, second = re.findall(r"^\[(\d+) input tokens, \d+ output tokens\]$", printed, re.MULTILINE)
    assert printed.startswith("one two three\n[3 input tokens, ")
    assert int(second) > 2 * int(first)


def test_the_messages_are_counted_and_print_their_answers(serve: Serve) -> None:
    printed = run_example("messages.py", "one two three", address=serve().address)

    assert printed.startswith("[3 tokens to read]\none two three\n[3 input tokens, ")
    assert re.findall(r"^\[(\d+) tokens to read\]$", printed, re.MULTILINE) == re.findall(
        r"^\[(\d+) input tokens, \d+ output tokens, end_turn\]$", printed, re.MULTILINE
    )


def test_the_completion_prints_prompt_and_continuation(serve: Serve) -> None:
    printed = run_example("completion.py", "once more", address=serve().address)

    assert printed.startswith("once more")
    assert "[finish reason: stop]" in printed


def test_the_nearest_text_comes_first(serve: Serve) -> None:
    printed = run_example("embeddings.py", "one two", "three", "one two", "four", address=serve().address)

    assert printed.startswith(" 1.000  one two\n")
    assert printed.endswith("[6 tokens, 256 dimensions]\n")


def test_the_batch_prints_an_answer_for_each_question(serve: Serve) -> None:
    printed = run_example("batch.py", "one two", "three", address=serve().address)

    assert printed.startswith("one two\n  one two\nthree\n  three\n[completed, ")


def test_curl_shows_every_event_to_the_end(serve: Serve) -> None:
    printed = run_example("curl.sh", address=serve().address, model="scripted")

    events = [line for line in printed.splitlines() if line]
    assert all(line.startswith("data: ") for line in events)
    assert events[-1] == "data: [DONE]"


def test_the_tour_of_an_operator_ends_with_a_limit_reached_and_a_ledger_that_adds_up() -> None:
    printed = run_example("limits_and_usage.sh")

    assert re.findall(r"^HTTP/1.1 (\d+)", printed, re.MULTILINE) == ["200", "200", "200", "429"]
    assert "Rate limit reached for small in key key_" in printed
    assert re.search(r"^acme +small +3 +9 +12 +\$0\.00000855$", printed, re.MULTILINE)
    assert re.search(r"^Findings +none$", printed, re.MULTILINE)


@pytest.mark.parametrize("uncommented", [False, True])
def test_the_configuration_is_accepted_as_it_is_and_with_all_that_is_optional(
    tmp_path: Path, uncommented: bool
) -> None:
    text = (EXAMPLES / "laneway.toml").read_text(encoding="utf-8")
    if uncommented:  # but for the certificate, which is read at once
        text = re.sub(r"^# (?!tls_)(?=\w+ = |\[)", "", text, flags=re.MULTILINE)
    file = tmp_path / "laneway.toml"
    file.write_text(text, encoding="utf-8")

    settings = load_settings(file, environ={})

    for name, table in settings.backends.items():
        convert_options(backend_class(str(table["type"])), name, table)
    assert bool(settings.auth.keys) == uncommented
    assert set(re.findall(r"^# (tls_\w+) =", text, flags=re.MULTILINE)) <= set(ServerOptions.__struct_fields__)


def test_every_example_is_listed_in_the_readme() -> None:
    listed = re.findall(r"\[`([\w./]+)`\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"))

    there = [path.relative_to(EXAMPLES) for path in [*EXAMPLES.glob("*.*"), *EXAMPLES.glob("node/*.mjs")]]
    assert sorted(listed) == sorted(str(path) for path in there if path.name != "README.md")
