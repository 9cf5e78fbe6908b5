"""The small answers: models, tokens, errors, and errors inside a stream."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.types import ChatTemplate, Message, ModelCard, TokenizeRequest, Tokens
from gateway.errors import InvalidBody
from gateway.openai.errors import envelope
from gateway.openai.models import model_list, model_object
from gateway.openai.sse import error_event
from gateway.openai.tokens import decode_detokenize, decode_tokenize, detokenize_body, tokenize_body


def decode(body: bytes) -> Any:
    return msgspec.json.decode(body)


def test_an_error_has_all_four_members() -> None:
    assert envelope("no", "server_error", None, None) == (
        b'{"error":{"message":"no","type":"server_error","param":null,"code":null}}'
    )
    assert decode(envelope("lone \ud800", "server_error", "p", "c"))["error"]["message"] == "lone \ufffd"


def test_an_error_inside_a_stream_is_an_event_and_the_end_mark() -> None:
    assert error_event(b'{"error":{}}') == b'data: {"error":{}}\n\ndata: [DONE]\n\n'


def test_models_are_listed_with_vllms_additions() -> None:
    card = ModelCard(id="org/m", created=5, max_model_len=100)
    wire = {
        "id": "org/m",
        "object": "model",
        "created": 5,
        "owned_by": "laneway",
        "root": "org/m",
        "parent": None,
        "max_model_len": 100,
        "permission": [],
    }

    assert decode(model_object(card)) == wire
    assert decode(model_list([card])) == {"object": "list", "data": [wire]}


def test_a_text_is_tokenized_with_special_tokens_and_messages_without() -> None:
    assert decode_tokenize(b'{"prompt":"a b","return_token_strs":true}') == TokenizeRequest(
        model="", prompt="a b", return_token_strs=True
    )
    assert decode_tokenize(
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"add_generation_prompt":false}'
    ) == TokenizeRequest(
        model="m",
        messages=(Message(role="user", content="x"),),
        template=ChatTemplate(add_generation_prompt=False),
        add_special_tokens=False,
    )


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"{}", "prompt", "missing_required_parameter"),
        (b'{"prompt":5}', "prompt", "invalid_type"),
        (b'{"messages":[]}', "messages", "empty_array"),
        (b'{"messages":[{"role":"x"}]}', "messages[0].role", "invalid_value"),
        (b'{"prompt":"x","messages":[{"role":"user"}]}', "messages", "invalid_parameter_combination"),
        (b'{"prompt":"x","chat_template":"y"}', "chat_template", "unsupported_parameter"),
        (b'{"messages":[{"role":"user"}],"tools":[{}]}', "tools", "unsupported_parameter"),
    ],
)
def test_a_wrong_body_to_tokenize_is_refused(body: bytes, param: str, code: str) -> None:
    with pytest.raises(InvalidBody) as caught:
        decode_tokenize(body)

    assert (caught.value.param, caught.value.code) == (param, code)


def test_token_ids_are_read_and_bounded() -> None:
    assert decode_detokenize(b'{"tokens":[1,2.0]}').tokens == [1, 2]
    for body in (b"{}", b'{"tokens":[-1]}', b'{"tokens":["a"]}', b'{"tokens":[9999999999]}', b'{"tokens":1}'):
        with pytest.raises(InvalidBody):
            decode_detokenize(body)


def test_the_answers_about_tokens_have_vllms_form() -> None:
    assert tokenize_body(Tokens(ids=(1, 2)), 100) == (
        b'{"count":2,"max_model_len":100,"tokens":[1,2],"token_strs":null}'
    )
    assert decode(tokenize_body(Tokens(ids=(1,), strs=("\ud800",)), None))["token_strs"] == ["\ufffd"]
    assert detokenize_body("hé") == '{"prompt":"hé"}'.encode()
