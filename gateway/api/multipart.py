"""Reads a form with one file in it, as it arrives: the file goes where its pieces are sent, fields are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from litestar.types import Receive
from msgspec import Struct
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from gateway.api.body import ClientLeft
from gateway.api.exchange import Exchange
from gateway.errors import InvalidBody, UnsupportedMedia

MOST_PARTS = 32
MAX_FIELD_BYTES = 64 * 1024
PIECE_BYTES = 1 << 20  # that the file's sink gets at a time
FILE = "file"


class Form(Struct, frozen=True):
    """What a form said. `filename` is None when no file came."""

    fields: dict[str, str]
    filename: str | None


async def read_form(exchange: Exchange, receive: Receive, sink: Callable[[bytes], Awaitable[None]]) -> Form:
    """The whole form; `sink` gets the bytes of the part called `file`.

    Raises `UnsupportedMedia` for anything but multipart/form-data, `InvalidBody` for a broken form, `ClientLeft`, and
    what `sink` raises.
    """
    reader = _Reader(sink)
    parser = _parser(exchange)
    try:
        async for piece in _pieces(receive):
            for event in parser.parse(piece):
                await reader.take(event)
        parser.close()
    except MultipartError as error:
        raise InvalidBody(f"We could not read the multipart form of your request: {error}.") from None
    return Form(reader.fields, reader.filename)


class _Reader:
    """The parts of one form, one after the other."""

    def __init__(self, sink: Callable[[bytes], Awaitable[None]]) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._sink = sink
        self._part: MultipartSegment | None = None
        self._waiting = bytearray()

    async def take(self, event: MultipartSegment | bytearray | bytes | None) -> None:
        """The head of a part, a piece of it, or None at its end."""
        if isinstance(event, MultipartSegment):
            self._begin(event)
        elif event is not None:
            await self._add(event)
        elif self._part is not None:
            await self._end(self._part)

    def _begin(self, part: MultipartSegment) -> None:
        if part.name == FILE:
            if self.filename is not None:
                raise InvalidBody("The form has more than one file. Send one file a request.", param=FILE)
            self.filename = part.filename or FILE
        self._part = part

    async def _add(self, piece: bytearray | bytes) -> None:
        self._waiting += piece
        assert self._part is not None
        if self._part.name == FILE:
            if len(self._waiting) >= PIECE_BYTES:
                await self._pass_on()
        elif len(self._waiting) > MAX_FIELD_BYTES:
            name = (self._part.name or "")[:60]
            raise InvalidBody(f"Invalid '{name}': a field may have {MAX_FIELD_BYTES} bytes at most.", param=name)

    async def _end(self, part: MultipartSegment) -> None:
        if part.name == FILE:
            await self._pass_on()
        else:
            self.fields[part.name or ""] = self._waiting.decode("utf-8", "replace")
            self._waiting.clear()
        self._part = None

    async def _pass_on(self) -> None:
        if self._waiting:
            await self._sink(bytes(self._waiting))
            self._waiting.clear()


def _parser(exchange: Exchange) -> PushMultipartParser:
    kind, options = parse_options_header((exchange.text_header(b"content-type") or "").strip())
    if kind != "multipart/form-data" or not options.get("boundary"):
        raise UnsupportedMedia("This route reads a form. Send it with Content-Type: multipart/form-data; boundary=….")
    if exchange.headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        raise UnsupportedMedia("A form is read as it is. Send it without Content-Encoding.")
    try:
        return PushMultipartParser(options["boundary"], max_segment_count=MOST_PARTS)
    except MultipartError as error:
        raise InvalidBody(f"We could not read the multipart form of your request: {error}.") from None


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        if message.get("body"):
            yield message["body"]
        more = message.get("more_body", False)
