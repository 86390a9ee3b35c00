"""How is one request sent to a runner, and its answer read as it comes?

A lean HTTP/1.1 client on asyncio.Protocol and httptools: what the gateway costs is decided here.
Bytes are pushed into a sink once per read, never once per chunk or line.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, cast

import httptools

from berth.gateway.body import Spooled

CONNECT_TIMEOUT_S = 5.0
IDLE_S = 4.0
"""Engines (uvicorn, cpp-httplib) close an idle connection after 5 s; ours go first."""
JOIN_BELOW = 16 << 10
HELD_MAX = 256 << 10
"""Bytes of an answer that may be held before a sink is attached; then reading pauses."""

Address = tuple[str, int]
Sink = Callable[[bytes, bool], None]
"""Takes what one read gave, and whether the answer is complete with it."""


class UpstreamError(Exception):
    """The runner refused, reset or closed the connection, or what it sent is not HTTP."""


class ConnectError(UpstreamError):
    """No connection came about: the request cannot have begun."""


class Connection(asyncio.Protocol):
    """One connection to a runner, one exchange at a time."""

    def __init__(self, pool: "Pool", address: Address) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.address = address
        self.idle_since = 0.0
        self.is_reused = False
        self.is_closed = False
        self._parser: Any = httptools.HttpResponseParser(self)
        self._is_asked = False
        """An exchange is under way."""
        self._waiter: asyncio.Future[None] | None = None
        self._can_write: asyncio.Future[None] | None = None
        self._write_paused = False
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self.has_data = False
        self.is_complete = False
        self.error: UpstreamError | None = None
        self._keep = False
        self._is_paused = False
        self._parts: list[bytes] = []
        self._held = 0
        self._sink: Sink | None = None

    # -- one exchange --------------------------------------------------------------------------

    async def ask(self, head: bytes, body: bytes | Spooled) -> None:
        """Send a request; returns when the answer's head is there. Raises UpstreamError.

        However it fails, the connection is closed.
        """
        if self.is_reused:
            self._reset()
        self._is_asked = True
        try:
            if isinstance(body, Spooled):
                await self._send_spooled(head, body)
            elif len(body) < JOIN_BELOW:
                self._transport.write(head + body)
            else:
                self._transport.writelines((head, body))
            while not self.has_head:
                if self.error is not None:
                    raise self.error
                self._waiter = self._loop.create_future()
                await self._waiter
        except BaseException:
            self.abort()
            raise

    async def _send_spooled(self, head: bytes, body: Spooled) -> None:
        self._transport.write(head)
        with body.reading() as read:
            while piece := await asyncio.to_thread(read):
                if self.has_head or self.error is not None:
                    # The rest stays unsent: whatever came next here would be taken for it.
                    self._keep = False
                    return
                self._transport.write(piece)
                if self._write_paused and not self.is_closed:
                    self._can_write = self._loop.create_future()
                    await self._can_write

    @property
    def has_begun(self) -> bool:
        """The first bytes of the body are here, or there are none to come."""
        return bool(self._parts) or self.is_complete

    async def begin(self, patience: float) -> None:
        """Wait for the first bytes of the body, for so long at most.

        Raises UpstreamError when it ends without any: an engine that sends its head early and dies
        on the prompt has not answered yet. The connection is closed then, as on any failure.
        """
        try:
            if self.error is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await self._stir()
            if self.error is not None and not self._parts:
                raise self.error
        except BaseException:
            self.abort()
            raise

    def attach(self, sink: Sink) -> None:
        """What is there goes to the sink at once, what comes later as it comes."""
        self._sink = sink
        if self._parts or self.is_complete:
            self._deliver(sink)
        self.resume()

    async def stirred(self) -> None:
        """Wait until the answer is complete, it failed, or `wake` is called."""
        if not self.is_complete and self.error is None:
            await self._stir()

    async def peek(self, limit: int) -> bytes:
        """The body so far, once it is complete or ``limit`` bytes long; `attach` gives it again."""
        while not self.is_complete and self.error is None and self._held < limit:
            await self._stir()
        return b"".join(self._parts)

    def pause(self) -> None:
        """Stop reading: the client does not keep up."""
        if not self._is_paused and not self.is_closed:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._is_paused:
            self._is_paused = False
            if not self.is_closed:
                self._transport.resume_reading()

    def release(self) -> None:
        """The exchange is over: keep the connection when it may serve again, else close it."""
        self._is_asked = False
        self._sink = None
        is_idle = self.is_complete and self._keep and self.error is None and not self.is_closed
        if is_idle and self._transport.get_write_buffer_size() == 0:
            self.resume()
            self._pool.put(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once; the runner sees that nobody listens."""
        self._is_asked = False
        self._sink = None
        if not self.is_closed:
            self._transport.abort()

    async def _stir(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter

    def wake(self) -> None:
        """Let `stirred` return."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _deliver(self, sink: Sink) -> None:
        data, self._held = b"".join(self._parts), 0
        self._parts.clear()
        sink(data, self.is_complete)

    # -- asyncio -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        _probe_dead_peers(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if not self._is_asked or self.is_complete:
            # Bytes that nobody asked for: the connection's framing cannot be trusted.
            self._keep = False
            self._transport.abort()
            return
        self.has_data = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as err:
            self.error = UpstreamError(f"the runner's answer is not HTTP: {err}")
            self._transport.abort()
        sink = self._sink
        if sink is None:
            self._held += len(data)
            if self._held > HELD_MAX:
                self.pause()
            self.wake()
            return
        parts = self._parts
        if len(parts) == 1 and not self.is_complete:
            # The way of a token.
            sink(parts.pop(), False)
        elif parts or self.is_complete:
            self._deliver(sink)
        if self.is_complete or self.error is not None:
            self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._pool.drop(self)
        # No cycle is left behind: the collector would have to search for it.
        self._parser = None
        if self._is_asked and not self.is_complete:
            if self.has_head and self.error is None and not self._is_framed():
                self.is_complete = True
                if self._sink is not None:
                    self._deliver(self._sink)
            elif self.error is None:
                self.error = UpstreamError(str(exc) if exc else "the runner closed the connection")
        self.resume_writing()
        self.wake()

    def _is_framed(self) -> bool:
        """The answer says where it ends; else the end of the connection is its end."""
        return any(
            name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers
        )

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)

    # -- httptools -----------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []
            return
        self.status = status
        self.has_head = True
        self._keep = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self.has_head:
            self.is_complete = True


def _probe_dead_peers(sock: socket.socket) -> None:
    """Notice within half a minute that a node is gone, also while an answer is silent."""
    options = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Pool:
    """Idle connections by address: newest first, none older than ``IDLE_S``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Address, list[Connection]] = {}
        self._sweeping = False

    async def request(self, address: Address, head: bytes, body: bytes | Spooled) -> Connection:
        """A connection that holds the head of the answer.

        A kept connection that ended before the first byte is replaced once by a fresh one: the
        engine had closed it while idle. Raises ConnectError, UpstreamError.
        """
        kept = self._take(address)
        if kept is not None:
            try:
                await kept.ask(head, body)
            except UpstreamError:
                if kept.has_data:
                    raise
            else:
                return kept
        fresh = await self._connect(address)
        await fresh.ask(head, body)
        return fresh

    async def _connect(self, address: Address) -> Connection:
        host, port = address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self, address), host, port
                )
        except (OSError, TimeoutError) as err:
            raise ConnectError(f"{host}:{port}: {err or 'no connection in time'}") from err
        return connection

    def _take(self, address: Address) -> Connection | None:
        idle = self._idle.get(address)
        oldest = self._loop.time() - IDLE_S
        while idle:
            connection = idle.pop()
            if connection.is_closed:
                continue
            if connection.idle_since < oldest:
                connection.abort()
                continue
            connection.is_reused = True
            return connection
        return None

    def put(self, connection: Connection) -> None:
        """Keep an idle connection."""
        connection.idle_since = self._loop.time()
        self._idle.setdefault(connection.address, []).append(connection)
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later(IDLE_S, self._sweep)

    def drop(self, connection: Connection) -> None:
        """A connection has ended."""
        idle = self._idle.get(connection.address)
        if idle and connection in idle:
            idle.remove(connection)

    def _sweep(self) -> None:
        oldest = self._loop.time() - IDLE_S
        for address, idle in list(self._idle.items()):
            kept = [connection for connection in idle if connection.idle_since > oldest]
            for connection in idle:
                if connection.idle_since <= oldest:
                    connection.abort()
            self._idle[address] = kept
            if not kept:
                del self._idle[address]
        self._sweeping = bool(self._idle)
        if self._sweeping:
            self._loop.call_later(1.0, self._sweep)

    def close(self) -> None:
        """End every idle connection."""
        for idle in list(self._idle.values()):
            for connection in list(idle):
                connection.abort()
        self._idle.clear()
