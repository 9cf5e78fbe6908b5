"""`/v1/embeddings`: the body, its rules, its translation, and the answer."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from backends.types import Chunk, EmbedRequest, Usage
from gateway.embedding import numbers
from gateway.openai import faults
from gateway.openai.caller import Caller
from gateway.openai.decoding import decode_request, names_of, read
from gateway.openai.prompts import Prompt, read_prompts
from gateway.openai.sampling import INT32_MAX, Priority, lane_of_priority
from gateway.openai.text import to_json
from gateway.openai.unknown import refuse_unknown
from gateway.openai.unused import refuse
from gateway.openai.wire import LENIENT, WireOptions

Encoding: TypeAlias = Literal["float", "base64"]


class EmbeddingsBody(Struct, frozen=True, kw_only=True):
    """OpenAI's fields, then vLLM's. `input` is required; `prompts.py` reads it, since it comes in four shapes.

    `base64` is the vector as little-endian float32. `dimensions` asks for fewer numbers than the model makes. Of a
    longer input only the last `truncate_prompt_tokens` are read; -1 stands for as many as the model takes.
    """

    model: str
    input: Any = None
    encoding_format: Encoding = "float"
    dimensions: Annotated[int, Meta(ge=1, le=INT32_MAX)] | None = None
    user: str = ""

    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    add_special_tokens: bool = True
    priority: Priority = 0
    endianness: Literal["native", "little"] = "little"


class RefusedEmbeddingsFields(Struct, frozen=True, kw_only=True):
    """vLLM's fields that would change the vectors, and that nothing here obeys. Each default asks nothing."""

    messages: list[dict[str, Any]] = []
    truncation_side: Literal["left", "right"] = "left"
    embed_dtype: str = "float32"


_KNOWN = names_of(EmbeddingsBody, RefusedEmbeddingsFields)


class EmbeddingsRequest(Struct, frozen=True, kw_only=True):
    """Read and found in order. `body` is what the client sent, `extra` what nothing here knows."""

    fields: EmbeddingsBody
    prompts: tuple[Prompt, ...]
    body: dict[str, Any]
    extra: dict[str, Any]

    @property
    def stream(self) -> bool:
        """Vectors come all at once."""
        return False

    @property
    def lane_wish(self) -> str | None:
        """The lane that the body asks for, None for the key's own."""
        return lane_of_priority(self.fields.priority)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Nothing of it."""
        return ()

    def to_generate(self, caller: Caller) -> EmbedRequest:
        """The request as backends read it."""
        request = EmbedRequest(
            request_id=caller.request_id,
            model=self.fields.model,
            prompts=self.prompts,
            dimensions=self.fields.dimensions,
            truncate_to=self.fields.truncate_prompt_tokens,
            add_special_tokens=self.fields.add_special_tokens,
            body=self.body,
            extra=self.extra,
        )
        return caller.stamp(request)

    def encoder(self, request_id: str, created: int) -> None:
        """There are no events."""

    def folder(self, request_id: str, created: int) -> EmbeddingsFolder:
        """What turns the vectors into one body."""
        return EmbeddingsFolder(self.fields.model, self.fields.encoding_format)


class EmbeddingsUsage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens of all inputs together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The vector of input number `index`: numbers, or their base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The vectors, in the order of the inputs."""

    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingsUsage


class EmbeddingsFolder:
    """Chunks → one list. Each vector is written when it comes: all of them at once would hold up everybody else."""

    def __init__(self, model: str, encoding: Encoding) -> None:
        self._model, self._encoding = model, encoding
        self._written: dict[int, bytes] = {}
        self._usage = Usage()

    def add(self, chunk: Chunk) -> None:
        """Take in the next vector."""
        self._usage = chunk.usage
        if chunk.vector is not None:
            self._written[chunk.index] = self._write(chunk.index, chunk.vector)

    def body(self) -> bytes:
        """The answer, its vectors sorted by index."""
        data = b",".join(self._written[index] for index in sorted(self._written))
        tokens = self._usage.prompt_tokens
        usage = to_json(EmbeddingsUsage(prompt_tokens=tokens, total_tokens=tokens))
        return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (data, to_json(self._model), usage)

    def _write(self, index: int, vector: bytes) -> bytes:
        shown = b'"%b"' % base64.b64encode(vector) if self._encoding == "base64" else to_json(numbers(vector))
        return b'{"object":"embedding","index":%d,"embedding":%b}' % (index, shown)


def decode_embeddings(body: bytes, options: WireOptions = LENIENT) -> EmbeddingsRequest:
    """The request in `body`, checked whole. Raises `InvalidBody` for the first fault."""
    whole, present = decode_request(body)
    if options.refuses_unknown:
        refuse_unknown(whole, (EmbeddingsBody, RefusedEmbeddingsFields))
    fields = read(present, EmbeddingsBody)
    refuse(read(present, RefusedEmbeddingsFields))
    if fields.input is None:
        raise faults.missing("input")
    if fields.truncate_prompt_tokens == 0:
        raise faults.invalid_value("truncate_prompt_tokens", "0 tokens are nothing to embed. Use -1 or more than 0.")
    return EmbeddingsRequest(
        fields=fields,
        prompts=read_prompts(fields.input, "input"),
        body=whole,
        extra={name: value for name, value in whole.items() if name not in _KNOWN},
    )
