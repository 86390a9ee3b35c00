"""How do bytes go to the client, framed as its HTTP version asks, as soon as they are there?"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

from berth.gateway.errors import Refused
from berth.gateway.inbound import Request

PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
BODILESS = (204, 304)
TAIL_READS = 4


class Source(Protocol):
    """Where the bytes of an answer come from: a connection to a runner."""

    def pause(self) -> None:
        """Stop reading."""

    def wake(self) -> None:
        """Let whoever waits for the answer look at the reply."""


class Reply:
    """One answer to one client. Written straight to the transport: no copy, no task per chunk."""

    __slots__ = (
        "_chunked",
        "_clock",
        "_connection",
        "_pending",
        "_request",
        "bytes_out",
        "events",
        "first",
        "first_at",
        "has_begun",
        "is_cut",
        "is_pressed",
        "keep_alive",
        "source",
        "status",
        "tail",
    )

    def __init__(self, request: Request, clock: Callable[[], float]) -> None:
        self._request = request
        self._clock = clock
        self.source: Source | None = None
        """Told when the client does not keep up."""
        self._connection = request.connection
        self._chunked = False
        self._pending = b""
        self.keep_alive = request.keep_alive
        self.status = 0
        self.has_begun = False
        """The head is out (or about to go): the status cannot change any more."""
        self.is_pressed = False
        """The client does not keep up."""
        self.is_cut = False
        self.bytes_out = 0
        self.events = 0
        self.first = b""
        self.first_at = 0.0
        self.tail: deque[bytes] = deque(maxlen=TAIL_READS)

    @property
    def goes_on(self) -> bool:
        """The connection may serve another request."""
        return self.keep_alive and not self.is_cut

    def begin(self, status: int, headers: Iterable[bytes], *, length: int | None) -> None:
        """The head; it leaves with the first bytes of the body, or with `flush`.

        ``headers`` are ready lines, each with its CRLF. Without ``length`` the body is chunked, or
        ends with the connection where the client does not know chunks.
        """
        self.has_begun = True
        self.status = status
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, PHRASES.get(status, b""))]
        lines += headers
        is_old = self._request.is_old
        if status not in BODILESS:
            if length is not None:
                lines.append(b"Content-Length: %d\r\n" % length)
            elif is_old:
                self.keep_alive = False
            else:
                self._chunked = True
                lines.append(b"Transfer-Encoding: chunked\r\n")
        if not (self.keep_alive and self._request.body.is_complete):
            self.keep_alive = False
            lines.append(b"Connection: close\r\n")
        elif is_old:
            lines.append(b"Connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self._pending = b"".join(lines)

    def flush(self) -> None:
        """Send the head if nothing has carried it yet."""
        if self._pending:
            self._write(b"")

    def push(self, data: bytes, is_last: bool) -> None:
        """Bytes of the runner's answer, as one read gave them."""
        if not self.bytes_out:
            self.first = data
            self.first_at = self._clock()
        self.bytes_out += len(data)
        self.events += data.count(b"data: ")
        self.tail.append(data)
        if self._chunked:
            if not is_last:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            elif data:
                data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
            else:
                data = b"0\r\n\r\n"
        if self._pending:
            data, self._pending = self._pending + data, b""
        connection = self._connection
        connection.write(data)
        if connection.writing_paused:
            self.is_pressed = True
            if self.source is not None:
                self.source.pause()
                self.source.wake()

    def say(self, frame: bytes) -> None:
        """A frame of our own, between or after those of the runner."""
        self._write(b"%x\r\n%b\r\n" % (len(frame), frame) if self._chunked else frame)

    def end(self) -> None:
        """The body is complete."""
        self._write(b"0\r\n\r\n" if self._chunked else b"")

    def cut(self) -> None:
        """The body is not complete, and the client must be able to tell."""
        self.flush()
        self.is_cut = True
        self._connection.close()

    def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer of our own."""
        lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        lines.append(f"Date: {formatdate(usegmt=True)}\r\n".encode())
        self.begin(status, lines, length=len(body))
        self.bytes_out = len(body)
        self._write(b"" if self._request.method == "HEAD" else body)

    def refuse(self, refused: Refused, headers: Mapping[str, str]) -> None:
        """An error as the whole answer."""
        self.whole(refused.status, {**refused.headers(), **headers}, refused.body())

    async def drained(self) -> None:
        """Wait until the client has taken what was written."""
        self.is_pressed = False
        await self._connection.drained()

    def _write(self, data: bytes) -> None:
        if self._pending:
            data, self._pending = self._pending + data, b""
        if data:
            self._connection.write(data)
