"""What does a gateway need around it in a test? A catalogue by hand, a recorder for Demand, raw sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from berth.gateway.accounting import Ledger
from berth.gateway.catalog import Catalog, Route, Served
from berth.gateway.demand import Absent
from berth.gateway.main import Gateway, build, listening
from berth.reasons import State
from berth.settings import Settings

DEADLINE_S = 10.0


@dataclass
class Recorder:
    """Keeps what the gateway wrote to Demands; fails while told to."""

    words: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    fails: bool = False
    absent: bool = False

    async def write(self, key: str, manager: str, status: dict[str, Any]) -> None:
        if self.absent:
            raise Absent(key)
        if self.fails:
            raise OSError("API server away")
        self.words.append((key, manager, status))

    def waiting(self, key: str = "default/m") -> list[list[dict[str, Any]]]:
        """The entries of ``waiting`` as they were written, one after another."""
        return [
            status.get("waiting", [])
            for k, manager, status in self.words
            if k == key and manager == "berth-gateway-gw-0"
        ]

    def used(self, key: str = "default/m") -> list[str]:
        return [s["used"] for k, m, s in self.words if k == key and m == "berth-gateway-used"]


@dataclass
class Answer:
    """One HTTP answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """Data frames, parsed where they are JSON."""
        frames = [f for f in self.body.decode().split("\n\n") if f.startswith("data: ")]
        return [f[6:] if f == "data: [DONE]" else json.loads(f[6:]) for f in frames]


class Client:
    """A raw HTTP/1.1 client: sees chunk borders and unclean ends, can leave at any byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(
        self,
        body: bytes | None,
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        **headers: str,
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: gateway"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None and "Transfer_Encoding" not in headers:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in raw[1:] if line)
        return int(raw[0].split()[1]), {name.lower(): value for name, value in headers.items()}

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; ``b""`` is the last."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def answer(self) -> Answer:
        status, headers = await self.head()
        body, is_whole = bytearray(), True
        try:
            if "content-length" in headers:
                body += await self.reader.readexactly(int(headers["content-length"]))
            elif headers.get("transfer-encoding") == "chunked":
                while piece := await self.chunk():
                    body += piece
            else:
                body += await self.reader.read()
        except (asyncio.IncompleteReadError, ValueError):
            is_whole = False
        return Answer(status, headers, bytes(body), is_whole)

    def leave(self) -> None:
        self.writer.transport.abort()


@dataclass
class World:
    """A gateway that listens, and everything a test may do to it."""

    gateway: Gateway
    recorder: Recorder
    port: int
    lines: list[dict[str, Any]]

    @property
    def catalog(self) -> Catalog:
        return self.gateway.catalog

    def model(self, name: str = "m", **fields: Any) -> Served:
        served = Served(**{"namespace": "default", "name": name, "id": name, **fields})
        self.catalog.put_model(served)
        return served

    def change(self, name: str = "m", **fields: Any) -> None:
        served = self.catalog.get(f"default/{name}")
        assert served is not None
        self.catalog.put_model(replace(served, **fields))

    def up(self, port: int, name: str = "m", *, runner: str = "r1", parallel: int = 1) -> None:
        """A runner of the model is up at this port."""
        self.change(name, state=State.UP)
        self.catalog.put_route(
            Route(runner, f"default/{name}", "127.0.0.1", port, parallel, runner)
        )

    def down(self, name: str = "m", *, runner: str = "r1", state: State = State.DOWN) -> None:
        self.catalog.drop_route(f"default/{name}", runner)
        self.change(name, state=state)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()

    async def ask(self, body: Any = None, **how: Any) -> Answer:
        """One request on a connection of its own, to the end of its answer."""
        async with self.client() as client:
            raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            client.send(raw, **how)
            return await asyncio.wait_for(client.answer(), DEADLINE_S)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask(None, method="GET", path=path, **headers)

    @property
    def waiting(self) -> int:
        return sum(len(line.queue.waiting) for line in self.gateway.desk.lines.values())

    @property
    def running(self) -> int:
        return sum(line.queue.in_flight for line in self.gateway.desk.lines.values())


def chat(model: Any = "m", **fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"messages": [{"role": "user", "content": "hi"}], "model": model, **fields}


@contextlib.asynccontextmanager
async def world(**settings: str) -> AsyncIterator[World]:
    """A gateway over an empty catalogue that is ready."""
    given = {"POD_NAME": "gw-0", "KEEPALIVE": "100ms", **settings}
    catalog, recorder = Catalog(), Recorder()
    catalog.is_ready = True
    lines: list[dict[str, Any]] = []
    ledger = Ledger(
        write=lambda data: lines.extend(json.loads(line) for line in data.splitlines()),
        clock=asyncio.get_running_loop().time,
    )
    effective = Settings({f"BERTH_{name}": value for name, value in given.items()})
    gateway = build(effective, catalog, recorder, ledger)
    async with listening(gateway, "127.0.0.1", 0) as port:
        yield World(gateway, recorder, port, lines)
    await gateway.demand.withdraw()


async def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fails saying what was waited for."""
    deadline = asyncio.get_running_loop().time() + deadline_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for: {what}"
        await asyncio.sleep(0.002)


Handler = Callable[["Upstream", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    """A runner whose every byte a test scripts: ``handler`` gets each connection."""

    handler: Handler
    port: int = 0
    connections: int = 0
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    closed: int = 0
    """Connections that the gateway closed while the script waited for it."""

    async def request(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
        """Read one request: its head and its body."""
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        self.requests.append((head, await reader.readexactly(size)))
        return self.requests[-1]

    async def until_closed(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        self.closed += 1

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Upstream"]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self.handler(self, reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def answering(
    upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answers every request on the connection with ``{}``."""
    while True:
        await upstream.request(reader)
        writer.write(OK)
