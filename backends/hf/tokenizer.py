"""The tokenizer of a model folder: text and messages → token ids, and back. Every call may run in any thread.

transformers is imported when a tokenizer is loaded, not before, and torch only for folders whose tokenizer needs a
class of its own: the front processes start sooner and stay smaller without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import msgspec

from backends.errors import ConfigError, InvalidRequest
from backends.hf.chat_template import JSON, ChatPrompt
from backends.hf.detokenizer import REPLACEMENT, StreamDetokenizer, TokenStream, Vocabulary
from backends.types import ChatTemplate, Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

GENERIC_CLASSES = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})


class HFTokenizer(Protocol):
    """The part of a transformers tokenizer that is used here; `backend_tokenizer` only where it is a Rust one."""

    @property
    def chat_template(self) -> str | Mapping[str, str] | None: ...
    @property
    def apply_chat_template(self) -> Callable[..., str]: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_id(self) -> int | None: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...
    def get_vocab(self) -> dict[str, int]: ...
    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]: ...


class Codec(Vocabulary, Protocol):
    """A vocabulary that also encodes."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`, never cut or padded. Raises TypeError for text that is not Unicode."""
        ...


class ModelTokenizer:
    """One model's tokenizer. `vocab_size` is the highest id plus one; `bos_id` and `eos_id` may be absent."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer
        backend: Tokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
        self._codec: Codec = PlainCodec(tokenizer) if backend is None else RustCodec(backend)
        self._chat = ChatPrompt(tokenizer)
        self.vocab_size = max(tokenizer.get_vocab().values(), default=-1) + 1
        self.bos_id = tokenizer.bos_token_id
        self.eos_id = tokenizer.eos_token_id

    @classmethod
    def load(cls, folder: Path, trust_remote_code: bool = False) -> ModelTokenizer:
        """Read it from local files alone. Raises `ConfigError` when the folder has none that can be read."""
        # One text a call leaves nothing to share out, and the library's own pool would queue short texts behind long.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            return cls(_load(folder, trust_remote_code))
        except (OSError, ValueError, ImportError, KeyError) as error:
            reason = str(error).strip().split("\n")[0][:200]
            raise ConfigError(f"model: the tokenizer in {folder.name!r} cannot be read: {reason}") from error

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be rendered at all."""
        return self._chat.exists

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises `InvalidRequest` for text with half a surrogate pair."""
        try:
            return self._codec.encode(text, add_special_tokens)
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest("The text holds half of a surrogate pair, so it is not valid Unicode.") from error

    def render(
        self, messages: Sequence[Message], template: ChatTemplate, tools: Sequence[Mapping[str, JSON]] | None = None
    ) -> str:
        """The prompt's text; see `ChatPrompt.render`."""
        return self._chat.render(messages, template, tools)

    def encode_chat(
        self, messages: Sequence[Message], template: ChatTemplate, tools: Sequence[Mapping[str, JSON]] | None = None
    ) -> list[int]:
        """Render and encode. The template writes the special tokens itself, so none is added: no double BOS."""
        return self.encode(self.render(messages, template, tools), add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of `token_ids`. Raises `InvalidRequest` for an id outside the vocabulary."""
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequest(
                    f"Token id {token_id} is outside the vocabulary (0 to {self.vocab_size - 1}).", param="tokens"
                )
        return self._codec.decode(token_ids, skip_special_tokens)

    def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Each token in the vocabulary's own spelling, such as `Ġhello`."""
        return tuple(token or "" for token in self._tokenizer.convert_ids_to_tokens(list(token_ids)))

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> StreamDetokenizer:
        """Incremental text of one choice that follows `prompt_ids`; only their tail is looked at."""
        return StreamDetokenizer(self._codec, prompt_ids, skip_special_tokens)


class RustCodec:
    """A `tokenizers` tokenizer. Only its batch calls give up the GIL: `encode` holds it for seconds on a long text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """See `Codec`."""
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """See `Vocabulary`."""
        return self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0]

    def stream(self, seed: list[int], skip_special_tokens: bool) -> TokenStream:
        """See `Vocabulary`."""
        from tokenizers.decoders import DecodeStream

        return RustStream(self._tokenizer, DecodeStream(seed or None, skip_special_tokens))


class RustStream:
    """A `DecodeStream` with its tokenizer."""

    def __init__(self, tokenizer: Tokenizer, stream: DecodeStream) -> None:
        self._tokenizer = tokenizer
        self._stream = stream

    def step(self, token_ids: list[int]) -> str | None:
        """See `TokenStream`."""
        return self._stream.step(self._tokenizer, token_ids)


class PlainCodec:
    """A tokenizer written in Python (no Rust backend): slower, and it shares the GIL."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """See `Codec`."""
        text.encode()  # half a surrogate pair must fail here, whatever the tokenizer makes of it
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """See `Vocabulary`."""
        return self._tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def stream(self, seed: list[int], skip_special_tokens: bool) -> TokenStream:
        """See `Vocabulary`."""
        return PlainStream(self, seed, skip_special_tokens)


class PlainStream:
    """`DecodeStream`'s rule over any decode: decode the last released tokens again with the new ones, show the rest."""

    def __init__(self, vocabulary: Vocabulary, seed: list[int], skip_special_tokens: bool) -> None:
        self._vocabulary = vocabulary
        self._skip = skip_special_tokens
        self._ids = list(seed)
        self._num_shown = len(seed)
        self._prefix = vocabulary.decode(seed, skip_special_tokens) if seed else ""

    def step(self, token_ids: list[int]) -> str | None:
        """See `TokenStream`."""
        self._ids += token_ids
        text = self._vocabulary.decode(self._ids, self._skip)
        if len(text) <= len(self._prefix) or text.endswith(REPLACEMENT):
            return None
        if not text.startswith(self._prefix):
            raise ValueError("earlier text changed")
        released = text[len(self._prefix) :]
        self._ids = self._ids[self._num_shown :]
        self._num_shown = len(self._ids)
        self._prefix = self._vocabulary.decode(self._ids, self._skip)
        return released


def _load(folder: Path, trust_remote_code: bool) -> HFTokenizer:
    """Folders that name the generic class need no registry of models, whose import takes seconds and loads torch."""
    if not trust_remote_code and _is_generic(folder):
        from transformers import PreTrainedTokenizerFast

        return cast(HFTokenizer, PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True))
    from transformers import AutoTokenizer

    return cast(
        HFTokenizer,
        AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code),
    )


def _is_generic(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    if not config.is_file() or not (folder / "tokenizer.json").is_file() or (folder / "tekken.json").exists():
        return False
    return msgspec.json.decode(config.read_bytes()).get("tokenizer_class") in GENERIC_CLASSES
