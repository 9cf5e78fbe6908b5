"""The documents say what the code does: options, examples and words are compared with it."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import typer
from msgspec import Struct
from msgspec import inspect as mi

from backends.hf.options import HFOptions
from backends.registry import backend_class, convert_options
from backends.script import Failure, Script, read_script
from backends.scripted import ScriptedOptions
from gateway.anthropic.messages import IgnoredMessageFields, MessageFields
from gateway.api.generating import SILENCE_HEADER, TIMEOUT_HEADER, WHOLE_SILENCE_HEADER
from gateway.app import EXPOSED
from gateway.batches import BatchOptions
from gateway.cli.main import app
from gateway.config import ServerOptions, load_settings
from gateway.conformance.cases import all_cases
from gateway.dispatch import LANE_HEADER
from gateway.events import Outcome, Source
from gateway.files import FileOptions
from gateway.idempotency import HEADER
from gateway.lanes import LaneOptions
from gateway.limits import LimitOptions
from gateway.openai.chat import ChatFields
from gateway.openai.completions import CompletionFields
from gateway.openai.decoding import names_of
from gateway.openai.formats import FormatFields
from gateway.openai.sampling import SamplingFields
from gateway.openai.template import TemplateFields
from gateway.openai.tools import ToolFields
from gateway.openai.unused import IgnoredFields, RefusedFields
from gateway.openai.wire import WireOptions
from gateway.reload import LIVE, LIVE_ENDINGS
from gateway.rules import Meter
from gateway.store import StoreOptions
from gateway.tenants import AuthOptions, StaticKey
from gateway.verify import FindingKind

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")

SCRIPTED = (ROOT / "docs" / "scripted.md").read_text(encoding="utf-8")

DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

SECTIONS: dict[str, type[Struct]] = {
    "`[server]`": ServerOptions,
    "`[auth]`": AuthOptions,
    "`[[auth.key]]`": StaticKey,
    "`[store]`": StoreOptions,
    "`[files]`": FileOptions,
    "`[batches]`": BatchOptions,
    "`[limits]`": LimitOptions,
    "`[wire]`": WireOptions,
    "`[lanes.NAME]`": LaneOptions,
    '`[backends.NAME]`, `type = "hf"`': HFOptions,
    '`[backends.NAME]`, `type = "scripted"`': ScriptedOptions,
}


def section_of(document: str, title: str) -> str:
    """What stands under a title, up to the next of the same rank."""
    rank = title.split(" ", 1)[0]
    text = (ROOT / document).read_text(encoding="utf-8")
    return text.split(f"\n{title}\n", 1)[1].split(f"\n{rank} ", 1)[0]


def rows(section: str) -> dict[str, list[str]]:
    """Option → the other cells of its row, in the table of that section."""
    text = section_of("docs/configuration.md", f"## {section}")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    return {first.strip("`"): rest for first, *rest in cells}


def as_documented(default: object) -> str:
    """A default as the table writes it."""
    if default is msgspec.NODEFAULT:
        return "required"
    if default is None:
        return "none"
    return f"`{msgspec.json.encode(default).decode()}`".replace('","', '", "')


def bounds(info: mi.Type) -> Iterator[str]:
    """Every number that bounds a value of this type."""
    if isinstance(info, mi.Metadata):
        yield from bounds(info.type)
    elif isinstance(info, mi.UnionType):
        for arm in info.types:
            yield from bounds(arm)
    elif isinstance(info, mi.IntType | mi.FloatType):
        limits = (info.gt, info.ge, info.lt, info.le)
        yield from (f"{limit:g}" if isinstance(limit, float) else str(limit) for limit in limits if limit is not None)
    elif isinstance(info, mi.StrType):
        yield from (str(limit) for limit in (info.min_length, info.max_length) if limit is not None)
    elif isinstance(info, mi.VarTupleType):
        yield from bounds(info.item_type)


def words(info: mi.Type) -> Iterator[str]:
    """Every word that is allowed for a value of this type, as the table writes it."""
    if isinstance(info, mi.UnionType):
        for arm in info.types:
            yield from words(arm)
    elif isinstance(info, mi.LiteralType):
        yield from (f'`"{word}"`' for word in info.values)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_option_is_documented_and_nothing_else_is(section: str) -> None:
    assert list(rows(section)) == [field.encode_name for field in msgspec.structs.fields(SECTIONS[section])]


@pytest.mark.parametrize("section", SECTIONS)
def test_documented_defaults_and_bounds_are_those_of_the_code(section: str) -> None:
    struct = SECTIONS[section]
    types = {field.name: field.type for field in mi.type_info(struct).fields}  # type: ignore[attr-defined]
    for field in msgspec.structs.fields(struct):
        default, allowed, _meaning = rows(section)[field.encode_name]
        if (struct, field.name) != (LaneOptions, "priority"):  # the lanes differ in it
            assert default == as_documented(field.default), field.name
        numbers = re.findall(r"\d+", allowed)
        assert [bound for bound in bounds(types[field.name]) if bound not in numbers] == [], field.name
        assert [word for word in words(types[field.name]) if word not in allowed] == [], field.name


@pytest.mark.parametrize("document", ["README.md", "docs/configuration.md"])
def test_the_configuration_examples_are_accepted(document: str, tmp_path: Path) -> None:
    examples = re.findall(
        r"^```toml\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert examples
    for example in examples:
        file = tmp_path / "laneway.toml"
        file.write_text(example, encoding="utf-8")
        settings = load_settings(file, environ={})
        for name, table in settings.backends.items():
            convert_options(backend_class(str(table["type"])), name, table)


OBEYED = {
    "Chat": names_of(ChatFields, SamplingFields, FormatFields, TemplateFields, ToolFields),
    "Completions": names_of(CompletionFields, SamplingFields, FormatFields),
}
NEVER_OBEYED = {
    "suffix",
    "prompt_embeds",
    "prompt_logprobs",
}  # its own Structs know it, and it is refused


@pytest.mark.parametrize(("column", "route"), [(1, "Chat"), (2, "Completions")])
def test_every_field_of_a_body_is_in_the_table_of_compatibility_with_what_becomes_of_it(
    column: int, route: str
) -> None:
    cells = table_of("## Fields")
    told = {row[0].strip("`"): row[column] for row in cells if row[column] != "–"}

    known = dict.fromkeys(OBEYED[route], "obeyed")
    known |= dict.fromkeys(names_of(IgnoredFields), "ignored") | dict.fromkeys(names_of(RefusedFields), "refused")
    known |= dict.fromkeys(NEVER_OBEYED & known.keys(), "refused")

    assert told == known
    assert len(cells) == len({row[0] for row in cells})


def test_every_field_of_a_message_is_in_its_table_of_compatibility() -> None:
    cells = table_of("## Anthropic's messages")

    known = dict.fromkeys(names_of(MessageFields), "obeyed") | dict.fromkeys(names_of(IgnoredMessageFields), "ignored")
    assert {row[0].strip("`"): row[1] for row in cells} == known
    assert len(cells) == len(known)


def table_of(title: str) -> list[list[str]]:
    """The rows under a title of the document of compatibility, whose first cell is a field."""
    text = section_of("docs/compatibility.md", title)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]


def test_what_a_running_server_takes_over_is_documented() -> None:
    text = section_of("docs/configuration.md", "## Changes while it runs")

    for setting in (*LIVE, *LIVE_ENDINGS):
        assert f"`{setting.lstrip('.')}`" in text.replace("[", "").replace("]", ""), setting


def test_the_headers_that_clients_send_and_read_are_documented() -> None:
    sent, read = (section_of("docs/configuration.md", f"## {which} headers") for which in ("Request", "Reply"))

    names = (LANE_HEADER, TIMEOUT_HEADER, SILENCE_HEADER, WHOLE_SILENCE_HEADER, HEADER)
    assert [name for name in names if f"`{name}`" not in sent] == []
    assert [name for name in EXPOSED if f"`{name}`" not in read] == []


@pytest.mark.parametrize(
    ("document", "title", "kinds"),
    [
        ("docs/usage.md", "## What was used", [*get_args(Outcome), *get_args(Source)]),
        ("docs/usage.md", "## Limits", list(get_args(Meter))),
        ("docs/reliability.md", "## `laneway ledger verify`", list(get_args(FindingKind))),
    ],
)
def test_every_kind_of_a_thing_is_documented(document: str, title: str, kinds: list[str]) -> None:
    text = section_of(document, title)

    assert [kind for kind in kinds if f"`{kind}`" not in text] == []


@pytest.mark.parametrize("document", [*DOCUMENTS, "examples/limits_and_usage.sh"])
def test_the_commands_of_the_documents_exist_with_their_options(document: str) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    of_backends = pyproject["project"]["entry-points"]["laneway.commands"]
    for line in commands_in(document):
        command: Any = typer.main.get_command(app)
        asked = shlex.split(line, comments=True)[1:]
        if asked[0] in of_backends:
            continue
        while hasattr(command, "commands") and asked and not asked[0].startswith("-"):
            name = asked.pop(0)
            assert name in command.commands, f"{line}: no {name}"
            command = command.commands[name]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in asked if word.startswith("--")} <= known | {"--help"}, line


def commands_in(document: str) -> Iterator[str]:
    """Each `laneway …` in a code block of the shell or in a sentence, as one line."""
    text = (ROOT / document).read_text(encoding="utf-8")
    if document.endswith(".md"):
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        yield from re.findall(r"`(laneway [a-z][^`|]*)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
        text = "\n".join(blocks)
    for line in text.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|\(|/)(laneway [a-z][^|>)&]*)", line.strip())
        if found:
            yield found[1]


def test_the_cases_of_conformance_are_counted_as_they_are() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([VB])(\d+) to [VB](\d+) \|", text, re.MULTILINE)
    numbers: dict[str, list[int]] = {}
    for case in all_cases(64):
        numbers.setdefault(case.group, []).append(int(case.id[1:].partition(".")[0]))

    assert [(name, int(first), int(last)) for name, _, first, last in rows] == [
        (name, min(found), max(found)) for name, found in numbers.items()
    ]


def test_every_field_of_a_script_is_documented_and_every_way_to_fail() -> None:
    fields, fail = (
        re.findall(r"^\| `(\w+)`", SCRIPTED.split(f"\n## `{section}`\n")[1].split("\n## ")[0], re.MULTILINE)
        for section in ("script", "fail")
    )
    (kinds,) = (field.type for field in msgspec.structs.fields(Failure) if field.name == "kind")

    assert fields == [field.encode_name for field in msgspec.structs.fields(Script)]
    assert fail == list(get_args(kinds))


def test_the_scripts_of_the_documents_are_accepted() -> None:
    recipes = [msgspec.json.decode(recipe) for recipe in re.findall(r"^```json\n(.*?)^```", SCRIPTED, re.M | re.S)]
    bodies = [msgspec.json.decode(body) for body in re.findall(r"-d '(\{.*?\})'$", SCRIPTED, re.M | re.S)]

    assert (len(recipes) > 3, len(bodies)) == (True, 1)
    for script in [*recipes, *(body["script"] for body in bodies)]:
        assert read_script({"script": script}) is not None


def test_the_words_of_the_glossary_are_names_in_the_code() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for package in ("gateway", "backends")
        for path in (ROOT / package).rglob("*.py")
    ]
    known = set(re.findall(r"[A-Za-z_]\w*", " ".join(sources)))
    table = [
        line.rsplit("|", 2)[1]
        for line in (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()
        if line[:2] == "| "
    ]
    names = {name for cell in table for name in re.findall(r"`([\w.]+)`", cell)}

    assert {name for name in names if name.rsplit(".", 1)[-1] not in known} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_file_names_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    places = [link.split("#") for link in re.findall(r"\]\(([^):]*#[^)]+)", text)]
    paths = re.findall(r"`((?:gateway|backends|tests|docs|docker|openapi|examples)/[\w./-]*)`", text)

    assert [link for link in links if not ((ROOT / document).parent / link).exists()] == []
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for file, place in places:
        target = (ROOT / document).parent / file if file else ROOT / document
        titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        assert place in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, place
