"""How is a client's request read, and how is it noticed that the client left?

HTTP/1.1 on asyncio.Protocol and httptools (llhttp, with no leniency switched on). One request of a
connection is answered at a time, by a task that is cancelled when the client leaves. What a
client sends ahead is bounded: a head, an unread body, requests behind the one in hand.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httptools

log = logging.getLogger(__name__)
HEAD_MAX = 64 << 10
TOO_LONG = f"its head is longer than {HEAD_MAX} bytes"
AHEAD_MAX = 256 << 10
"""Bytes of a body that may lie unread; then reading pauses."""
KEEP_ALIVE_S = 75.0
LINGER_S = 5.0
"""How long what a client still sends is thrown away after a refusal, so that it can read that."""
SWEEP_S = 5.0
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BrokenBodyError(Exception):
    """What came is not the body that the head promised."""


class Body:
    """A request's body as it comes in."""

    __slots__ = ("_connection", "_fault", "_parts", "_waiter", "is_complete", "must_ask", "size")

    def __init__(self, connection: "Inbound") -> None:
        self._connection = connection
        self._parts: list[bytes] = []
        self.size = 0
        self._fault = ""
        self._waiter: asyncio.Future[None] | None = None
        self.is_complete = False
        """Its last byte is here, be it read or not."""
        self.must_ask = False
        """The client waits for a word before it sends (``Expect: 100-continue``)."""

    def take(self) -> bytes:
        """What is here; ``b""`` when nothing is."""
        parts = self._parts
        if not parts:
            return b""
        self._parts, self.size = [], 0
        self._connection.go_on()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read(self) -> bytes:
        """What comes next; ``b""`` at the end. Raises BrokenBodyError."""
        if self.must_ask and not self._parts and not self.is_complete:
            self._connection.write(CONTINUE)
        self.must_ask = False
        while not self._parts and not self.is_complete:
            if self._fault:
                raise BrokenBodyError(self._fault)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.take()

    # -- the connection's side -----------------------------------------------------------------

    def add(self, data: bytes) -> int:
        """Bytes that lie here now."""
        self._parts.append(data)
        self.size += len(data)
        self._wake()
        return self.size

    def finish(self) -> None:
        self.is_complete = True
        self._wake()

    def fail(self, why: str) -> None:
        self._fault = why
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Request:
    """One request; its headers are those that came, byte for byte."""

    def __init__(self, connection: "Inbound") -> None:
        self.connection = connection
        self.body = Body(connection)
        self.method = ""
        self.target = b""
        """As it came: a path with its query, or a whole URL."""
        self.path = ""
        """The path, escaped as it came."""
        self.query = ""
        """With its ``?``, where there is one."""
        self.headers: list[tuple[bytes, bytes]] = []
        self._by_name: dict[bytes, bytes] = {}
        self.is_old = False
        """HTTP/1.0: knows no chunks, and keeps its connection only when it says so."""
        self.keep_alive = False
        self.fault = ""
        """Why it is no HTTP that could be read."""

    def header(self, name: bytes) -> str:
        """The first header of this lower-case name, its bytes kept; ``""`` without one."""
        value = self._by_name.get(name)
        return value.decode("utf-8", "surrogateescape") if value else ""

    def begin(self, *, method: bytes, is_old: bool, keep_alive: bool) -> None:
        """The head is complete."""
        self.method = method.decode("ascii")
        self.is_old = is_old
        self.keep_alive = keep_alive
        self._by_name = {name.lower(): value for name, value in reversed(self.headers)}
        expectation = self._by_name.get(b"expect", b"")
        self.body.must_ask = expectation.lower() == b"100-continue"
        target = self.target.decode("latin-1")
        if not target.startswith("/") and "://" in target:
            target = "/" + target.partition("://")[2].partition("/")[2]
        self.path, mark, query = target.partition("?")
        self.query = mark + query


Handler = Callable[[Request], Awaitable[bool]]
"""Answers a request; says whether the connection may serve another."""


class Inbound(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._loop = listener.loop
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser: Any = httptools.HttpRequestParser(self)
        self._requests: deque[Request] = deque()
        """The one in hand, and those behind it."""
        self._coming: Request | None = None
        """Whose head or body is being read."""
        self._in_head = False
        self._head_size = 0
        """Bytes of a head that has not ended; of one that has, those of its values."""
        self._task: asyncio.Task[None] | None = None
        self._is_deaf = False
        """What still comes is thrown away."""
        self._is_paused = False
        self._drained: asyncio.Future[None] | None = None
        self.writing_paused = False
        self.write: Callable[[bytes], None] = _nowhere
        """Send; once the connection is closing, a word to nobody."""
        self.remote = ""
        self.idle_since = self._loop.time()

    # -- the answer's side ---------------------------------------------------------------------

    async def drained(self) -> None:
        """Wait until the client has taken most of what was written."""
        while self.writing_paused:
            self._drained = self._loop.create_future()
            await self._drained

    def close(self) -> None:
        """No more; what was written still goes out."""
        self.write = _nowhere
        self._transport.close()

    def abort(self) -> None:
        """No more, at once."""
        self.write = _nowhere
        self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Between two requests."""
        return self._task is None

    def go_on(self) -> None:
        """Read again: there is room."""
        if self._is_paused and len(self._requests) <= 1:
            self._is_paused = False
            self._transport.resume_reading()

    # -- one request after another -------------------------------------------------------------

    def _start(self) -> None:
        self._task = self._loop.create_task(self._serve(self._requests[0]))

    async def _serve(self, request: Request) -> None:
        goes_on = False
        try:
            goes_on = await self._listener.handle(request)
        except Exception:
            log.exception("a connection is closed for a bug")
        self._task = None
        if self._transport.is_closing():
            return
        if not request.body.is_complete:
            self._linger()
        elif not goes_on or not request.keep_alive:
            self.close()
        else:
            self._next()

    def _next(self) -> None:
        self._requests.popleft()
        if self._requests:
            self._start()
        else:
            self.idle_since = self._loop.time()
        self.go_on()

    def _linger(self) -> None:
        """The client is still sending: closed now, the answer would be lost with what it sends."""
        self._is_deaf = True
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        self.write = _nowhere
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(LINGER_S, self._transport.abort)

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _give_up(self, why: str) -> None:
        """What comes is not HTTP; what came before it is still answered."""
        self._is_deaf = True
        if self._coming is not None and self._coming in self._requests:
            self._coming.body.fail(why)
            return
        request = Request(self)
        request.fault = why
        request.body.is_complete = True
        self._requests.append(request)

    # -- asyncio -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.remote = str(peer[0]) if isinstance(peer, tuple) else ""
        with contextlib.suppress(OSError):
            # A client that vanished without a word is noticed by the kernel.
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.write = self._transport.write
        self._listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing is spoken here but HTTP/1.1: the request is answered as one, its offer ignored.
            self._is_deaf = True
            self._requests[-1].keep_alive = False
        except httptools.HttpParserError as err:
            self._give_up(str(err))
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > HEAD_MAX:
                self._give_up(TOO_LONG)
        if self._requests:
            if self._task is None:
                self._start()
            if len(self._requests) > 1:
                self._pause()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.connections.discard(self)
        self._is_deaf = True
        self.write = _nowhere
        self.resume_writing()
        if self._task is not None:
            self._task.cancel()
        # No cycle is left behind: the collector would have to search for it.
        self._parser = None
        self._coming = None
        self._requests.clear()

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # -- httptools -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._coming = Request(self)
        self._in_head = True
        self._head_size = 0

    def on_url(self, url: bytes) -> None:
        if self._coming is not None:
            self._coming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._coming
        if request is not None and self._in_head:
            request.headers.append((name, value))
            self._head_size += len(value)

    def on_headers_complete(self) -> None:
        request, parser = self._coming, self._parser
        if request is None:
            return
        self._in_head = False
        request.begin(
            method=parser.get_method(),
            is_old=parser.get_http_version() == "1.0",
            keep_alive=parser.should_keep_alive(),
        )
        if self._head_size > HEAD_MAX:
            request.fault = TOO_LONG
            request.keep_alive = False
        self._requests.append(request)

    def on_body(self, data: bytes) -> None:
        if self._coming is not None and self._coming.body.add(data) > AHEAD_MAX:
            self._pause()

    def on_message_complete(self) -> None:
        if self._coming is not None:
            self._coming.body.finish()
            self._coming = None


def _nowhere(data: bytes) -> None:
    """Where the words to a client go that has left."""


class Listener:
    """All connections of clients."""

    def __init__(self, handle: Handler) -> None:
        self.handle = handle
        self.loop = asyncio.get_running_loop()
        self.connections: set[Inbound] = set()
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def __call__(self) -> Inbound:
        return Inbound(self)

    def _sweep(self) -> None:
        """Close what was idle, or slow to send a head, for too long."""
        oldest = self.loop.time() - KEEP_ALIVE_S
        for connection in list(self.connections):
            if connection.is_idle and connection.idle_since < oldest:
                connection.close()
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    async def close(self, patience_s: float) -> None:
        """End every connection: idle ones at once, others with their answer or after a while."""
        self._sweeper.cancel()
        deadline = self.loop.time() + patience_s
        while self.connections:
            is_late = self.loop.time() >= deadline
            for connection in list(self.connections):
                if is_late:
                    connection.abort()
                elif connection.is_idle:
                    connection.close()
            if is_late:
                await asyncio.sleep(0)
                return
            await asyncio.sleep(0.01)
