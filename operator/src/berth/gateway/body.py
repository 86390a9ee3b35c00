"""What does a request's body say of the model and the stream, and where are its bytes kept?

Bodies are kept as they came. Small ones stay in memory; once all bodies together pass a budget,
what comes next goes to an unlinked file, so that hundreds of waiting requests cost disk, not memory.
"""

import asyncio
import contextlib
import json
import mmap
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from berth.gateway.errors import Refused
from berth.gateway.inbound import BrokenBodyError, Request

SMALL = 16 << 10
"""A body up to this size stays in memory whatever the budget says."""
PIECE = 256 << 10


class Fields(msgspec.Struct):
    """What the gateway needs to know; the rest is skipped, though its syntax is checked."""

    model: Any = None
    stream: Any = False


_decode = msgspec.json.Decoder(Fields).decode


class Spooled:
    """A body on disk. The file has no name, so it goes with its last handle."""

    def __init__(self, folder: str | None) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def append(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    @contextlib.contextmanager
    def mapped(self) -> Iterator[mmap.mmap]:
        """The body as a buffer of file pages."""
        self._file.flush()
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            yield view

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[], bytes]]:
        """A function that gives the next piece, from the start, ``b""`` at the end."""
        self._file.flush()
        self._file.seek(0)
        yield lambda: self._file.read(PIECE)

    def close(self) -> None:
        self._file.close()


@dataclass
class Store:
    """Where bodies are kept: ``limit`` for one, ``budget`` for all that are in memory."""

    limit: int
    budget: int
    folder: str | None = None
    in_memory: int = 0

    def take(self, body: bytes) -> bytes:
        """A body that came whole. Raises Refused ``request_too_large``."""
        if len(body) > self.limit:
            raise too_large(self.limit)
        self.in_memory += len(body)
        return body

    def take_back(self, body: "bytes | Spooled") -> None:
        """The request is over."""
        if isinstance(body, Spooled):
            body.close()
        else:
            self.in_memory -= len(body)


class Intake:
    """One body as it comes in."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parts: list[bytes] = []
        self._size = 0
        self._spool: Spooled | None = None

    async def add(self, data: bytes) -> None:
        """Raises Refused ``request_too_large``."""
        self._size += len(data)
        if self._size > self._store.limit:
            raise too_large(self._store.limit)
        if self._spool is not None:
            await asyncio.to_thread(self._spool.append, data)
            return
        self._parts.append(data)
        self._store.in_memory += len(data)
        if self._size > SMALL and self._store.in_memory > self._store.budget:
            await self._to_disk()

    async def _to_disk(self) -> None:
        self._spool = Spooled(self._store.folder)
        data = b"".join(self._parts)
        self._parts = []
        self._store.in_memory -= len(data)
        await asyncio.to_thread(self._spool.append, data)

    def done(self) -> bytes | Spooled:
        """The body; from now on it is the caller's to give back."""
        if self._spool is not None:
            spool, self._spool = self._spool, None
            return spool
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def discard(self) -> None:
        """Forget what is here (after `done`: nothing)."""
        if self._spool is not None:
            self._spool.close()
        self._store.in_memory -= sum(map(len, self._parts))
        self._parts = []


def too_large(limit: int) -> Refused:
    return Refused("request_too_large", f"the body is above the limit of {limit} bytes")


async def read_body(request: Request, store: Store) -> bytes | Spooled:
    """The body as it came. Raises Refused ``request_too_large``, ``unsupported_encoding``."""
    if request.header(b"content-encoding").lower() not in ("", "identity"):
        raise Refused("unsupported_encoding", "send the body without Content-Encoding")
    announced = request.header(b"content-length")
    if announced and int(announced) > store.limit:
        raise too_large(store.limit)
    body = request.body
    if body.is_complete and body.size <= SMALL:
        return store.take(body.take())
    intake = Intake(store)
    try:
        while data := await body.read():
            await intake.add(data)
        return intake.done()
    except BrokenBodyError as err:
        raise Refused("invalid_request", f"the body cannot be read: {err}") from err
    finally:
        intake.discard()


def fields_of(body: bytes | Spooled, content_type: str) -> Fields:
    """The model's id and whether a stream is asked for. Raises Refused with status 400."""
    if isinstance(body, Spooled):
        with body.mapped() as view:
            return _fields_of(view, content_type)
    return _fields_of(body, content_type)


def _fields_of(body: bytes | mmap.mmap, content_type: str) -> Fields:
    if content_type[:19].lower().startswith("multipart/form-data"):
        return multipart_fields(body, content_type)
    try:
        fields = _decode(body)
    except RecursionError as err:
        raise Refused("invalid_json", "the body is nested too deeply") from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        found = _lenient_fields(body)
        if found is None:
            raise Refused("invalid_json", f"the body is not a JSON object: {err}") from err
        fields = found
    if fields.model is not None and not isinstance(fields.model, str):
        raise Refused("invalid_json", "`model` must be a string", param="model")
    return fields


# Half an emoji cut off by a client, Python's own spelling of numbers that JSON lacks, a BOM: engines
# that read JSON with Python take them, so what they are is not for the gateway to say.
_LENIENT = (b"\\ud", b"\\uD", b"NaN", b"Infinity", b"\xef\xbb\xbf")


def _lenient_fields(body: bytes | mmap.mmap) -> Fields | None:
    if all(body.find(mark) < 0 for mark in _LENIENT):
        return None
    try:
        document = json.loads(bytes(body))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    return Fields(document.get("model"), document.get("stream", False))


def multipart_fields(body: bytes | mmap.mmap, content_type: str) -> Fields:
    """The fields ``model`` and ``stream`` of a form, wherever they stand. Parts are not copied."""
    boundary = _boundary(content_type)
    fields = Fields()
    at = body.find(boundary)
    while at >= 0:
        head_at = at + len(boundary)
        if body[head_at : head_at + 2] == b"--":
            return fields
        head_end = body.find(b"\r\n\r\n", head_at)
        at = body.find(b"\r\n" + boundary, head_end) if head_end >= 0 else -1
        if at < 0:
            break
        head = body[head_at:head_end].lower()
        if b'name="model"' in head or b"name=model" in head:
            fields.model = body[head_end + 4 : at].decode("utf-8", "replace")
        elif b'name="stream"' in head:
            fields.stream = body[head_end + 4 : at].strip().lower() in (b"true", b"1")
        at += 2
    raise Refused("invalid_multipart", "the multipart body ends before its last boundary")


def _boundary(content_type: str) -> bytes:
    for part in content_type.split(";")[1:]:
        name, _, value = part.strip().partition("=")
        if name.lower() == "boundary" and value:
            return b"--" + value.strip('"').encode("latin-1", "replace")
    raise Refused("invalid_multipart", "the Content-Type names no boundary")
