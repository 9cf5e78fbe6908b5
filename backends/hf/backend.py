"""The built-in engine as a backend: tokenize, submit, text out. No torch: the model is in another process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import msgspec
from msgspec import Struct

from backends.base import BackendContext, ProcessSpec
from backends.errors import ConfigError, ModelNotFound, Unavailable, UnsupportedParameter
from backends.hf.answer import Answer, error_of
from backends.hf.client import Client, EngineClient
from backends.hf.encoder import Encoder
from backends.hf.inputs import prepare_inputs
from backends.hf.messages import Stats, Submit, Welcome
from backends.hf.options import HFOptions
from backends.hf.prompts import prepare
from backends.hf.tokenizer import ModelTokenizer
from backends.types import (
    BackendHealth,
    Chunk,
    EmbedRequest,
    GenerateRequest,
    Metric,
    ModelCard,
    TokenizeRequest,
    Tokens,
    Usage,
)
from backends.vectors import first_numbers

log = logging.getLogger("laneway.hf")
T = TypeVar("T")

LONG_TEXT_CHARS = 1 << 16  # about a quarter of a second to encode: such texts queue behind each other only
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
EXTRA = ("torch", "transformers", "huggingface_hub")  # what the first import of the engine's parts would miss
MAX_SOCKET_PATH_BYTES = 103  # the least that a system allows (macOS), its closing zero left out


class FrontModel(Struct, frozen=True):
    """What a front has of a model: its tokenizer, and the most tokens of a sequence where its config says so.

    `encoder` is set for an embedding model.
    """

    tokenizer: ModelTokenizer
    max_model_len: int | None = None
    encoder: Encoder | None = None


class HFBackend:
    """The backend of type `hf`: one model, whose engine schedules its own queue."""

    Options: ClassVar[type[Struct]] = HFOptions

    def __init__(self, options: HFOptions, client: Client, load: Callable[[], FrontModel]) -> None:
        self._options = options
        self._name = served_name(options)
        self._client = client
        self._load_model = load
        self._created = int(time.time())
        self._tokenizer: ModelTokenizer | None = None
        self._encoder: Encoder | None = None
        self._max_model_len: int | None = options.max_model_len
        self._detail = "not started"
        self._loading: asyncio.Task[None] | None = None
        # Long texts have a thread of their own, so that no short one waits behind them.
        self._short = ThreadPoolExecutor(2, thread_name_prefix="laneway-tokenize")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="laneway-tokenize-long")

    @classmethod
    def create(cls, options: HFOptions, context: BackendContext) -> Self:
        """Build it over the socket that `process` will listen on. Raises `ConfigError` for a path too long for one."""
        client = EngineClient(socket_path(context), heartbeat_path(context))
        return cls(options, client, lambda: _load_front(options))

    @classmethod
    def check(cls, options: HFOptions, context: BackendContext) -> None:
        """See `Supervised`: find the model and see that it can be served here."""
        _check_extra(context)
        from backends.hf import loader

        socket_path(context)
        loader.check(options)

    @classmethod
    def process(cls, options: HFOptions, context: BackendContext) -> ProcessSpec:
        """See `Supervised`: the engine's process."""
        argv = (
            *(sys.executable, "-P", "-m", "backends.hf.server"),
            *("--name", context.name, "--run-dir", str(context.run_dir)),
            *("--options", msgspec.json.encode(options).decode()),
            *("--lanes", msgspec.json.encode(context.lanes).decode()),
        )
        return ProcessSpec(argv=argv, heartbeat=heartbeat_path(context), hang_after_s=options.hang_after_s)

    @property
    def models(self) -> Sequence[ModelCard]:
        """The one model."""
        return (ModelCard(id=self._name, created=self._created, max_model_len=self._max_model_len),)

    @property
    def capacity(self) -> int | None:
        """None: the engine schedules by tokens and has a queue of its own."""
        return None

    async def start(self) -> None:
        """Begin to connect, and to load the tokenizer in a thread."""
        self._detail = "the tokenizer is being loaded"
        self._loading = asyncio.create_task(self._load())
        await self._client.start()

    async def stop(self) -> None:
        """Disconnect; the engine drops what this front had in it."""
        if self._loading is not None:
            self._loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loading
        await self._client.stop()
        for pool in (self._short, self._long):
            pool.shutdown(wait=False, cancel_futures=True)

    def health(self) -> BackendHealth:
        """Ready when the tokenizer is there and the engine moves."""
        status = self._client.status()
        stats = self._client.stats
        return BackendHealth(
            ready=status.ready and self._tokenizer is not None,
            detail=status.detail if self._tokenizer is not None else self._detail,
            running=stats.running,
            waiting=stats.waiting,
            metrics=_metrics(stats),
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """See `Backend`. The first chunk comes when the engine schedules the first token of a prompt."""
        self._check_model(request.model)
        tokenizer, welcome = self._ready()
        if self._encoder is not None:
            raise UnsupportedParameter(
                f"The model '{request.model[:200]}' makes embeddings alone; send it to /v1/embeddings.", param="model"
            )
        cap = self._options.max_output_tokens
        work = await self._in_thread(_num_chars(request), lambda: prepare(request, tokenizer, welcome, cap))
        answer = Answer(work, request.sampling, tokenizer)
        if not work.submits:
            for chunk in answer.without_tokens():
                yield chunk
            return
        stream = self._client.submit(_stamped(work.submits))
        try:
            choice_of = {sequence_id: choice for choice, sequence_id in enumerate(stream.ids)}
            while not answer.is_complete:
                output = await stream.next()
                choice = choice_of[output.id]
                if answer.is_finished(choice):
                    continue  # said before the engine learned that a stop string had ended it
                chunk = answer.take(choice, output)
                if answer.is_finished(choice):
                    stream.abort(output.id)
                yield chunk
        finally:
            stream.close()

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[Chunk, None]:
        """See `Embedding`. Each input says that it is being read, and then its vector."""
        self._check_model(request.model)
        self._loaded()  # what the model is, is known before its engine is there
        encoder = self._encoder
        if encoder is None:
            raise UnsupportedParameter(f"The model '{request.model[:200]}' cannot make embeddings here.", param="model")
        tokenizer, welcome = self._ready()
        submits = await self._in_thread(
            _num_chars(request), lambda: prepare_inputs(request, tokenizer, encoder, welcome)
        )
        stream = self._client.submit(_stamped(submits))
        index_of = {input_id: index for index, input_id in enumerate(stream.ids)}
        read = 0
        try:
            num_left = len(submits)
            while num_left:
                output = await stream.next()
                if output.error is not None:
                    raise error_of(output)
                index = index_of[output.id]
                read += len(submits[index].prompt_ids) if output.began else 0
                vector = None if output.vector is None else first_numbers(output.vector, request.dimensions)
                num_left -= output.finish_reason is not None
                usage = Usage(prompt_tokens=read)
                yield Chunk(index=index, vector=vector, finish_reason=output.finish_reason, usage=usage)
        finally:
            stream.close()

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """See `Tokenizing`. Works while the engine is down."""
        self._check_model(request.model)
        tokenizer = self._loaded()
        return await self._in_thread(_num_chars(request), lambda: _tokenize(request, tokenizer))

    async def count(self, request: TokenizeRequest) -> int:
        """See `Tokenizing`. Works while the engine is down."""
        return len((await self.tokenize(request)).ids)

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """See `Tokenizing`. Works while the engine is down."""
        self._check_model(model)
        tokenizer = self._loaded()
        return await self._in_thread(len(token_ids), lambda: tokenizer.decode(token_ids))

    def _check_model(self, model: str) -> None:
        if model != self._name:
            raise ModelNotFound.named(model)

    def _loaded(self) -> ModelTokenizer:
        if self._tokenizer is None:
            raise Unavailable(f"The model is not ready: {self._detail}.", retry_after_s=FIRST_RETRY_S)
        return self._tokenizer

    def _ready(self) -> tuple[ModelTokenizer, Welcome]:
        """Checked before any work is spent on the request."""
        tokenizer, welcome, status = self._loaded(), self._client.welcome, self._client.status()
        if welcome is None or not status.ready:
            raise Unavailable(f"The model is not ready: {status.detail}.", retry_after_s=FIRST_RETRY_S)
        self._max_model_len = min(welcome.max_model_len, welcome.max_sequence_tokens)
        return tokenizer, welcome

    async def _in_thread(self, num_chars: int, work: Callable[[], T]) -> T:
        pool = self._long if num_chars > LONG_TEXT_CHARS else self._short
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def _load(self) -> None:
        """Load the tokenizer, again and again until it is there: another process may still be writing it."""
        delay_s = FIRST_RETRY_S
        while True:
            try:
                model = await asyncio.get_running_loop().run_in_executor(self._long, self._load_model)
            except (ConfigError, OSError) as error:
                self._detail = "the tokenizer cannot be loaded"
                log.error("%s; trying again in %g s", error, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, LONGEST_RETRY_S)
            else:
                self._tokenizer, self._encoder = model.tokenizer, model.encoder
                known = [length for length in (model.max_model_len, self._max_model_len) if length is not None]
                self._max_model_len = min(known, default=None)
                return


def socket_path(context: BackendContext) -> Path:
    """Where the engine listens. Raises `ConfigError` when the system cannot name such a socket."""
    path = context.run_dir / f"{context.name}.sock"
    if len(bytes(path)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"backends.{context.name}: the socket's path has {len(bytes(path))} bytes and a system allows "
            f"{MAX_SOCKET_PATH_BYTES}; use a shorter name or a shorter folder for temporary files"
        )
    return path


def heartbeat_path(context: BackendContext) -> Path:
    """Where the engine's loop writes its pulse."""
    return context.run_dir / f"{context.name}.heartbeat"


def served_name(options: HFOptions) -> str:
    """The model's id towards clients: as set, else the last component of a folder or file, else the id itself."""
    if options.served_name is not None:
        return options.served_name
    path = Path(options.model).expanduser()
    return (
        path.resolve().name if path.is_absolute() or options.model.startswith(".") or path.exists() else options.model
    )


def _stamped(submits: Sequence[Submit]) -> Sequence[Submit]:
    now = time.monotonic()
    for submit in submits:
        submit.arrived_at = now
    return submits


def _check_extra(context: BackendContext) -> None:
    missing = [module for module in EXTRA if find_spec(module) is None]
    if missing:
        raise ConfigError(
            f'backends.{context.name}.type: "hf" needs {", ".join(missing)}, not installed; '
            "run: pip install 'laneway[hf]'"
        )


def _load_front(options: HFOptions) -> FrontModel:
    """From the model's folder, without torch."""
    from backends.hf import loader
    from backends.hf.checkpoint import Checkpoint

    folder = loader.tokenizer_dir(options)
    checkpoint = Checkpoint.read(folder)
    tokenizer = ModelTokenizer.load(folder, options.trust_remote_code)
    return FrontModel(tokenizer, checkpoint.max_model_len, checkpoint.encoder)


def _tokenize(request: TokenizeRequest, tokenizer: ModelTokenizer) -> Tokens:
    if request.messages is not None:
        ids = tokenizer.encode_chat(request.messages, request.template)
    else:
        ids = tokenizer.encode(request.prompt or "", request.add_special_tokens)
    return Tokens(ids=tuple(ids), strs=tokenizer.token_strings(ids) if request.return_token_strs else None)


def _num_chars(request: GenerateRequest | TokenizeRequest) -> int:
    """Roughly how much there is to encode."""
    if request.messages is not None:
        return sum(len(message.text) for message in request.messages)
    prompts = request.prompts if isinstance(request, GenerateRequest) else (request.prompt or "",)
    return sum(len(prompt) for prompt in prompts)


def _metrics(stats: Stats) -> tuple[Metric, ...]:
    """The engine's figures; this front shows them all, since every front gets the same."""
    figures = (
        ("engine_kv_blocks", "gauge", "KV cache blocks there are.", stats.kv_blocks_total),
        ("engine_kv_blocks_used", "gauge", "KV cache blocks in use.", stats.kv_blocks_used),
        ("engine_longest_step_seconds", "gauge", "Longest recent step.", stats.longest_step_s),
        ("engine_steps", "counter", "Steps done.", stats.steps),
        ("engine_step_seconds", "counter", "Time spent in steps.", stats.step_s),
        ("engine_step_predicted_seconds", "counter", "Time the step-time model had predicted.", stats.predicted_s),
        ("engine_prompt_tokens", "counter", "Prompt tokens computed.", stats.prompt_tokens),
        ("engine_completion_tokens", "counter", "Tokens generated.", stats.completion_tokens),
        ("engine_preemptions", "counter", "Sequences that lost their blocks for a while.", stats.preemptions),
    )
    return tuple(
        Metric(name=name, kind="gauge" if kind == "gauge" else "counter", help=text, value=float(value))
        for name, kind, text, value in figures
    )
