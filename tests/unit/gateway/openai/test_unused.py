"""Every field that OpenAI or vLLM documents is obeyed, ignored on purpose, or refused; none falls through unseen."""

from __future__ import annotations

from gateway.openai.chat import ChatFields
from gateway.openai.completions import CompletionFields
from gateway.openai.decoding import names_of
from gateway.openai.formats import FormatFields
from gateway.openai.response_tools import ResponseToolFields
from gateway.openai.responses import ResponseFields
from gateway.openai.sampling import SamplingFields
from gateway.openai.template import TemplateFields
from gateway.openai.tools import ToolFields
from gateway.openai.unused import UNUSED, IgnoredFields, RefusedFields

SHARED = """
    model stream stream_options temperature top_p n stop seed frequency_penalty presence_penalty logit_bias user
    response_format top_k min_p repetition_penalty length_penalty use_beam_search min_tokens ignore_eos stop_token_ids
    include_stop_str_in_output skip_special_tokens spaces_between_special_tokens bad_words allowed_token_ids
    logprob_token_ids truncate_prompt_tokens truncation_side prompt_logprobs echo add_special_tokens structured_outputs
    guided_json guided_regex guided_choice guided_grammar priority request_id session_id return_token_ids
    return_tokens_as_token_ids cache_salt thinking_token_budget kv_transfer_params vllm_xargs stream_interval
    repetition_detection max_tokens logprobs
"""
CHAT = """
    messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls functions function_call
    safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options metadata store service_tier
    reasoning_effort verbosity prediction modalities audio web_search_options moderation add_generation_prompt
    continue_final_message chat_template chat_template_kwargs documents mm_processor_kwargs media_io_kwargs
    include_reasoning
"""
COMPLETION = "prompt best_of suffix prompt_embeds"
RESPONSE = """
    model input instructions tools tool_choice parallel_tool_calls reasoning text store stream stream_options include
    prompt_cache_key prompt_cache_retention prompt_cache_options max_output_tokens max_tool_calls temperature top_p
    top_logprobs metadata truncation client_metadata service_tier user safety_identifier previous_response_id background
    conversation prompt context_management moderation
"""

OBEYED = (
    names_of(ChatFields, SamplingFields, FormatFields, TemplateFields, ToolFields),
    names_of(CompletionFields, SamplingFields, FormatFields),
    names_of(ResponseFields, SamplingFields, FormatFields, ResponseToolFields),
)


def test_every_documented_field_of_a_chat_is_known() -> None:
    assert not set((SHARED + CHAT).split()) - (OBEYED[0] | UNUSED)


def test_every_documented_field_of_a_completion_is_known() -> None:
    assert not set((SHARED + COMPLETION).split()) - (OBEYED[1] | UNUSED)


def test_every_documented_field_of_a_response_is_known() -> None:
    assert not set(RESPONSE.split()) - (OBEYED[2] | UNUSED)


def test_no_field_has_two_fates() -> None:
    ignored, refused = names_of(IgnoredFields), names_of(RefusedFields)

    assert not ignored & refused
    for obeyed in OBEYED:
        assert not obeyed & UNUSED
