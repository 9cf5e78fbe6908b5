"""Every member of a request that OpenAI's document has is known here, with its words and bounds, or told below."""

from __future__ import annotations

import functools
import re

import pytest
from msgspec import Struct

from gateway.openai.batches import BatchFields
from gateway.openai.chat import ChatFields
from gateway.openai.completions import CompletionFields
from gateway.openai.embeddings import EmbeddingsBody, RefusedEmbeddingsFields
from gateway.openai.formats import FormatFields
from gateway.openai.response_items import KINDS
from gateway.openai.response_tools import CustomTool, ResponseToolFields
from gateway.openai.responses import ResponseFields
from gateway.openai.sampling import SamplingFields
from gateway.openai.template import TemplateFields
from gateway.openai.tools import FunctionDefinition, ToolFields
from gateway.openai.unused import UNUSED_GROUPS
from tests.contract.openai_document import Comparison, Kinds, document, request_schema

GROUPS: dict[str, tuple[type[Struct], ...]] = {
    "/chat/completions": (ChatFields, TemplateFields, SamplingFields, FormatFields, ToolFields, *UNUSED_GROUPS),
    "/completions": (CompletionFields, SamplingFields, FormatFields, *UNUSED_GROUPS),
    "/embeddings": (EmbeddingsBody, RefusedEmbeddingsFields),
    "/responses": (ResponseFields, SamplingFields, FormatFields, ResponseToolFields, *UNUSED_GROUPS),
    "/batches": (BatchFields,),
    "/responses/input_tokens": (ResponseFields, ResponseToolFields),
}
READ_BY_CODE: Kinds = {"input[]": KINDS, "tools[]": {"function": FunctionDefinition, "custom": CustomTool}}
RESPONSES = {"/responses", "/responses/input_tokens"}
FOREIGN_ITEMS = """
    additional_tools apply_patch_call apply_patch_call_output code_interpreter_call compaction compaction_trigger
    computer_call computer_call_output file_search_call image_generation_call item_reference local_shell_call
    local_shell_call_output mcp_approval_request mcp_approval_response mcp_call mcp_list_tools program program_output
    shell_call shell_call_output tool_search_call tool_search_output web_search_call
"""
FOREIGN_TOOLS = """
    apply_patch code_interpreter computer computer_use_preview file_search image_generation local_shell mcp namespace
    programmatic_tool_calling shell tool_search
"""

# What differs on purpose: reason → differences, where `*` stands for anything. `free` is any JSON, `unknown` what no
# Struct names, `also` and `may be absent` what is accepted here alone; of bounds ours comes first.
DEVIATIONS: dict[str, tuple[str, ...]] = {
    "Read by code in tools.py and response_tools.py, word by word; the vectors and their tests have its cases.": (
        "tool_choice: any text",
        "tool_choice: free",
        "function_call: any text",
        "function_call: free",
    ),
    "Read by code in prompts.py, since it comes in four shapes; it is required there, or the empty text.": (
        "prompt: free@/completions",
        "prompt: may be absent@/completions",
        "input: free@/embeddings",
        "input: may be absent@/embeddings",
    ),
    "A JSON schema is any JSON to the reader, so that a wrong one is blamed on the format.": (
        "*.schema: free",
        "*.json_schema.schema: required",
    ),
    "Whether it is needed depends on the type, so code asks for it and names it when it is missing.": (
        "response_format<json_schema>.json_schema: may be absent",
        "text.format<json_schema>.name: may be absent",
        "text.format<json_schema>.schema: may be absent",
        "tools[]<custom>.format<grammar>.definition: may be absent",
        "tools[]<custom>.format<grammar>.syntax: may be absent",
        "tools[]<function>.function: may be absent",
        "messages[]<assistant>.tool_calls[]<function>.function: may be absent",
        "messages[]<function>.name: may be absent",
        "messages[]<tool>.tool_call_id: may be absent",
    ),
    "Refused: custom tools of a chat are grammars that nothing here makes a model obey.": (
        "tools[]<custom>.custom: *@/chat/completions",
        "messages[]<assistant>.tool_calls[]<custom>.custom: *",
    ),
    "Refused: no model here searches the web, keeps conversations or has stored prompts.": (
        "web_search_options: free",
        "conversation: free",
        "prompt: free@/responses",
    ),
    "Refused by models that read text only; whatever is in it reaches a backend that takes it.": (
        "messages[]<user>.content[]<file>.file: free",
        "messages[]<user>.content[]<image_url>.image_url: free",
        "messages[]<user>.content[]<input_audio>.input_audio: free",
        "input[]*<input_file>.*: unknown",
        "input[]*<input_image>.*: unknown",
    ),
    "Ignored: it is about caches, bills, moderation or sounds, and leaving it out makes no text wrong.": (
        "audio: free",
        "messages[]<assistant>.audio: free",
        "moderation: free",
        "prompt_cache_options: free",
        "prediction.content[]: free",
        "context_management[]: free",
        "*.prompt_cache_breakpoint: free",
        "*<input_text>.prompt_cache_breakpoint: unknown",
        "tools[]<*>.allowed_callers: unknown",
        "tools[]<*>.defer_loading: unknown",
        "tools[]<function>.output_schema: unknown",
        "personality: unknown",
    ),
    "Ignored: an item's history is its text, its name and its call_id; nothing is stored that its id could name.": (
        "input[]<*>.id: unknown",
        "input[]<*>.status: unknown",
        "input[]<*>.caller: unknown",
        "input[]<*>.namespace: unknown",
        "input[]<function_call_output>.name: unknown",
        "input[]<message>.phase: unknown",
        "input[]<message>.content[]<output_text>.annotations: unknown",
        "input[]<message>.content[]<output_text>.logprobs: unknown",
        "input[]<reasoning>.encrypted_content: unknown",
    ),
    "Left out and told in the log: items and tools of kinds that only OpenAI can run.": (
        *(f"input[]<{kind}>: unknown" for kind in FOREIGN_ITEMS.split()),
        *(f"tools[]<{kind}>: unknown" for kind in FOREIGN_TOOLS.split()),
        "tools[]<web_search*>: unknown",
    ),
    "OpenAI says it in prose, or its servers do: names of up to 64 characters, 128 tools, counts from 1.": (
        "*name: maxLength 64 for none",
        "*name: minLength 1 for none",
        "*name: pattern * for none",
        "tools: maxItems 128 for none",
        "max_tokens: minimum 1 for none",
        "max_completion_tokens: minimum 1 for none",
        "max_tool_calls: minimum 1 for none",
        "model: required",
        "input: required",
        "input: minItems 1 for none",
        "input[]<function_call_output>.call_id: required",
    ),
    "Refused: lines of a batch go to the routes that are here.": (
        "endpoint: no '/v1/images/*'",
        "endpoint: no '/v1/moderations'",
        "endpoint: no '/v1/videos'",
    ),
    "Numbers end where 64 or 32 bits do; the document rounds the ends of `seed` to a double.": (
        "*: maximum 9223372036854775807 for *",
        "dimensions: maximum 2147483647 for none",
        "seed: minimum -9223372036854775808 for *",
    ),
    "Wider: what OpenAI refuses and clients send all the same. `wire.strict` refuses what OpenAI does.": (
        "functions: minItems none for 1",
        "*content: minItems none for 1",
        "context_management: minItems none for 1",
        "stop: minItems none for 1",
        "stop: maxItems 256 for 4",
        "safety_identifier: maxLength 128 for 64",
        "prompt_cache_retention: also 'in-memory'",
        "service_tier: also 'ultrafast'",
        "max_output_tokens: minimum 1 for 16",
        "messages[]<*>.content: may be absent",
        "messages[]<function>.content: also array",
        "messages[]<user>.content[]<image_url>.image_url: also string",
        "*.function_call.arguments: may be absent",
        "*.function.arguments: may be absent",
        "input[]<*>.*: maxLength none for *",
        "input[]<*>.*: minLength none for *",
        "input[]<*>.*: may be absent",
        "input[]<message>.content: also string",
        "input[]<message>.role: also '*'",
        "tools[]<function>.parameters: may be absent",
        "tools[]<function>.strict: may be absent",
        "include[]: any text",
        "input: maxLength none for 10485760",
    ),
}


@functools.cache
def compared(path: str) -> Comparison:
    return Comparison(request_schema(path), GROUPS[path], READ_BY_CODE if path in RESPONSES else {})


def covers(entry: str, difference: str, path: str) -> bool:
    """Whether an entry of the table is about a difference, which may be bound to one route by `@route`."""
    pattern, _, route = entry.partition("@")
    asked = re.escape(pattern).replace(r"\*", ".*")
    return route in ("", path) and re.fullmatch(asked, difference) is not None


def entries() -> list[str]:
    return [entry for group in DEVIATIONS.values() for entry in group]


@pytest.mark.parametrize("path", GROUPS)
def test_a_request_is_read_as_the_document_says_or_differs_on_purpose(path: str) -> None:
    differences = compared(path).differences

    assert [found for found in differences if not any(covers(entry, found, path) for entry in entries())] == []


def test_no_deviation_is_told_that_is_none_any_more() -> None:
    found = [(difference, path) for path in GROUPS for difference in compared(path).differences]

    assert [entry for entry in entries() if not any(covers(entry, *one) for one in found)] == []


def test_the_comparison_reaches_into_messages_tools_and_items() -> None:
    chat, responses = compared("/chat/completions").paths, compared("/responses").paths

    assert {
        "messages[]<user>.content[]<text>.text",
        "messages[]<assistant>.tool_calls[]<function>.function.arguments",
        "tools[]<function>.function.parameters",
        "response_format<json_schema>.json_schema.strict",
        "stream_options.include_usage",
    } <= chat
    assert {
        "input[]<function_call_output>.output[]<input_text>.text",
        "input[]<reasoning>.summary[].text",
        "tools[]<custom>.format<grammar>.syntax",
        "text.format<json_schema>.schema",
        "reasoning.effort",
    } <= responses


def test_every_body_of_the_document_is_compared() -> None:
    posted = {path for path, methods in document()["paths"].items() if "requestBody" in methods.get("post", {})}

    assert posted - {"/files"} == GROUPS.keys()
