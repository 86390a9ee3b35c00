"""What would an engine do? A fake llama-server or vLLM whose behaviour a test chooses.

As a library: ``async with FakeEngine(Behaviour(...)).serving("127.3.4.5", 8080) as engine`` gives
one engine on one address (any 127.x.y.z works on Linux, and a stopped one refuses connections).
``FakeFleet`` listens once on 0.0.0.0 and is a different engine on every loopback address.

As a program: ``PYTHONPATH=tests python -m fakes.engine --port 8080 --slots 2 --token-delay 0.05``.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


@dataclass
class Behaviour:
    """How one fake engine behaves. It may be changed while the engine runs."""

    kind: str = "llamacpp"
    """``llamacpp``: answers 503 while loading. ``vllm``: nothing listens before it is up."""
    model: str = "fake"
    load_s: float = 0.0
    first_token_s: float = 0.0
    token_s: float = 0.0
    tokens: int = 16
    """Length of an answer, unless the request's max_tokens is smaller."""
    slots: int = 1
    crash_after: int | None = None
    """Dies after so many tokens of one answer (0: before the first byte)."""
    hang_after: int | None = None
    """Stops producing after so many tokens of one answer, and keeps its slot."""
    health_hangs: bool = False
    has_metrics: bool = True
    keep_alive_s: float = 5.0
    """Real engines close a connection that was idle so long."""
    exit_code_at_start: int | None = None
    ignores_sigterm: bool = False


@dataclass
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: Any
    finished: bool = False
    cancelled: bool = False


@dataclass
class Slot:
    """One slot as ``/slots`` tells it."""

    is_processing: bool = False
    task: int = -1
    decoded: int = 0


@dataclass
class FakeEngine:
    """One engine: its slots, its queue, its counters and what it has been asked."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    requests: list[Seen] = field(default_factory=list)
    tokens_total: int = 0
    prompt_total: int = 0
    deferred: int = 0
    on_crash: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.slots = [Slot() for _ in range(self.behaviour.slots)]
        self._free = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._tasks = 0

    # -- life ---------------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Still within its load time."""
        return time.monotonic() - self.started < self.behaviour.load_s

    @property
    def in_flight(self) -> int:
        """Requests in slots and in the queue."""
        return sum(slot.is_processing for slot in self.slots) + self.deferred

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (useful with 0)."""
        if self.behaviour.kind == "vllm":
            await asyncio.sleep(self.behaviour.load_s)
        self._runner = _runner(lambda _request: self, self.behaviour.keep_alive_s)
        return await _listen(self._runner, host, port)

    async def stop(self) -> None:
        """Stop listening and cut whatever is in flight, as SIGTERM does to real engines."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await _cut(runner)

    @contextlib.asynccontextmanager
    async def serving(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator["FakeEngine"]:
        """The engine while the block lasts; `address` and `port` say where."""
        self.port = await self.start(host, port)
        self.url = f"http://{host}:{self.port}"
        try:
            yield self
        finally:
            await self.stop()

    def crash(self) -> None:
        """Die on the spot: connections are cut, nothing listens any more."""
        if self.on_crash is not None:
            self.on_crash()
        elif self._runner is not None:
            self._crashing = asyncio.ensure_future(self.stop())

    # -- answers ------------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request, by path."""
        path = request.path
        if path in ("/health", "/v1/health"):
            return await self._health()
        if self.is_loading:
            return _error(503, "Loading model", "unavailable_error")
        if path in GENERATING and request.method == "POST":
            return await self._generate(request)
        pages = {
            "/slots": self._slots_page,
            "/metrics": self._metrics_page,
            "/v1/models": self._models_page,
            "/models": self._models_page,
            "/props": self._props_page,
        }
        page = pages.get(path)
        return page() if page else _error(404, "File Not Found", "not_found_error")

    async def _health(self) -> web.Response:
        if self.behaviour.health_hangs:
            await asyncio.sleep(3600)
        if self.is_loading:
            return _error(503, "Loading model", "unavailable_error")
        return web.json_response({"status": "ok"})

    def _slots_page(self) -> web.Response:
        rows = [
            {
                "id": index,
                "id_task": slot.task,
                "n_ctx": 4096,
                "speculative": False,
                "is_processing": slot.is_processing,
                "next_token": [{"n_decoded": slot.decoded}],
            }
            for index, slot in enumerate(self.slots)
        ]
        return web.json_response(rows)

    def _metrics_page(self) -> web.Response:
        if not self.behaviour.has_metrics:
            return _error(501, "This server does not support metrics endpoint.", "not_supported")
        running = sum(slot.is_processing for slot in self.slots)
        if self.behaviour.kind == "vllm":
            label = f'{{model_name="{self.behaviour.model}"}}'
            rows = {
                f"vllm:num_requests_running{label}": float(running),
                f"vllm:num_requests_waiting{label}": float(self.deferred),
                f"vllm:generation_tokens_total{label}": float(self.tokens_total),
                f"vllm:prompt_tokens_total{label}": float(self.prompt_total),
            }
        else:
            rows = {
                "llamacpp:prompt_tokens_total": self.prompt_total,
                "llamacpp:tokens_predicted_total": self.tokens_total,
                "llamacpp:requests_processing": running,
                "llamacpp:requests_deferred": self.deferred,
            }
        return web.Response(text="".join(f"{name} {value}\n" for name, value in rows.items()))

    def _models_page(self) -> web.Response:
        entry = {"id": self.behaviour.model, "object": "model", "created": 1, "owned_by": "fake"}
        return web.json_response({"object": "list", "data": [entry]})

    def _props_page(self) -> web.Response:
        return web.json_response({"total_slots": len(self.slots), "model_path": "/fake.gguf"})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
        except ValueError as err:
            return _error(400, f"parse error: {err}", "invalid_request_error")
        seen = Seen(request.path, dict(request.headers), body)
        self.requests.append(seen)
        try:
            async with self._slot() as slot:
                response = await self._speak(request, body, slot)
        except asyncio.CancelledError:
            seen.cancelled = True
            raise
        seen.finished = True
        return response

    async def _speak(self, request: web.Request, body: Any, slot: Slot) -> web.StreamResponse:
        self.prompt_total += len(json.dumps(body)) // 4
        await asyncio.sleep(self.behaviour.first_token_s)
        if request.path == "/v1/embeddings":
            return self._embeddings(body)
        count = min(self.behaviour.tokens, body.get("max_tokens") or self.behaviour.tokens)
        if body.get("stream"):
            return await self._stream(request, body, slot, count)
        words = [word async for word in self._words(slot, count)]
        return web.json_response(self._whole(request.path, body, "".join(words), count))

    async def _words(self, slot: Slot, count: int) -> AsyncIterator[str]:
        behaviour = self.behaviour
        for index in range(count + 1):
            if index == behaviour.crash_after:
                self.crash()
                await asyncio.sleep(3600)
            if index == behaviour.hang_after:
                await asyncio.sleep(3600)
            if index == count:
                return
            await asyncio.sleep(behaviour.token_s)
            slot.decoded += 1
            self.tokens_total += 1
            yield f"word{index} "

    async def _stream(
        self, request: web.Request, body: Any, slot: Slot, count: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if self.behaviour.crash_after != 0:
            await response.prepare(request)
        async for word in self._words(slot, count):
            await response.write(_frame(self._chunk(request.path, body, word, None)))
        await response.write(_frame(self._chunk(request.path, body, "", "stop")))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {**self._chunk(request.path, body, "", None), "choices": []}
            await response.write(_frame({**usage, "usage": _usage(body, count)}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _chunk(self, path: str, body: Any, word: str, reason: str | None) -> dict[str, Any]:
        is_chat = path == "/v1/chat/completions"
        piece = {"delta": {"content": word} if word else {}} if is_chat else {"text": word}
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        return self._head(body, kind) | {
            "choices": [{"index": 0, "finish_reason": reason, "logprobs": None, **piece}]
        }

    def _whole(self, path: str, body: Any, text: str, count: int) -> dict[str, Any]:
        is_chat = path == "/v1/chat/completions"
        piece = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        return self._head(body, "chat.completion" if is_chat else "text_completion") | {
            "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None, **piece}],
            "usage": _usage(body, count),
        }

    def _head(self, body: Any, kind: str) -> dict[str, Any]:
        model = body.get("model", self.behaviour.model)
        return {"id": f"fake-{len(self.requests)}", "object": kind, "created": 1, "model": model}

    def _embeddings(self, body: Any) -> web.Response:
        given = body.get("input", "")
        texts = given if isinstance(given, list) else [given]
        rows = [
            {"object": "embedding", "index": index, "embedding": [float(len(str(text))), 0.5]}
            for index, text in enumerate(texts)
        ]
        return web.json_response(
            {
                "object": "list",
                "data": rows,
                "model": self.behaviour.model,
                "usage": {"prompt_tokens": 1, "total_tokens": 1},
            }
        )

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[Slot]:
        """A free slot, in order of arrival; the request counts as deferred until it has one."""
        self.deferred += 1
        try:
            async with self._free:
                await self._free.wait_for(lambda: any(not s.is_processing for s in self.slots))
                slot = next(s for s in self.slots if not s.is_processing)
                self._tasks += 1
                slot.is_processing, slot.decoded, slot.task = True, 0, self._tasks
        finally:
            self.deferred -= 1
        try:
            yield slot
        finally:
            slot.is_processing = False
            async with self._free:
                self._free.notify_all()


class FakeFleet:
    """Many engines behind one listening socket, told apart by the address that was called.

    ``fleet[address]`` is the engine there, made from ``behaviours`` or the default when it is
    first called. `kill` cuts an address off: its connections are aborted, as of a dead pod.
    """

    def __init__(self, default: Behaviour | None = None) -> None:
        self.default = default or Behaviour()
        self.behaviours: dict[str, Behaviour] = {}
        self.engines: dict[str, FakeEngine] = {}
        self.dead: set[str] = set()
        self._runner: web.AppRunner | None = None

    def __getitem__(self, address: str) -> FakeEngine:
        if address not in self.engines:
            behaviour = self.behaviours.get(address, Behaviour(**vars(self.default)))
            engine = FakeEngine(behaviour, on_crash=lambda: self.kill(address))
            self.engines[address] = engine
        return self.engines[address]

    def kill(self, address: str) -> None:
        """The engine at this address dies: what it had in flight is cut, nobody answers."""
        self.dead.add(address)
        self.engines.pop(address, None)
        for transport in self._transports(address):
            transport.abort()

    def revive(self, address: str, behaviour: Behaviour | None = None) -> FakeEngine:
        """A new engine at this address, loading from now."""
        self.dead.discard(address)
        self.engines.pop(address, None)
        if behaviour is not None:
            self.behaviours[address] = behaviour
        return self[address]

    def _transports(self, address: str) -> list[Any]:
        server = self._runner.server if self._runner else None
        found = [handler.transport for handler in server.connections] if server else []
        return [t for t in found if t and t.get_extra_info("sockname")[0] == address]

    def _of(self, request: web.Request) -> FakeEngine | None:
        transport = request.transport
        address = transport.get_extra_info("sockname")[0] if transport else ""
        if address in self.dead:
            if transport:
                transport.abort()
            return None
        return self[address]

    @contextlib.asynccontextmanager
    async def serving(self, host: str = "0.0.0.0", port: int = 0) -> AsyncIterator["FakeFleet"]:
        """The fleet while the block lasts; `port` says where on every address."""
        self._runner = _runner(self._of, self.default.keep_alive_s)
        self.port = await _listen(self._runner, host, port)
        try:
            yield self
        finally:
            await _cut(self._runner)


def _runner(
    engine_of: Callable[[web.Request], FakeEngine | None], keep_alive_s: float
) -> web.AppRunner:
    async def answer(request: web.Request) -> web.StreamResponse:
        engine = engine_of(request)
        if engine is None:
            raise ConnectionResetError("nobody lives here")
        return await engine.answer(request)

    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", answer)
    # Cancellation on disconnect is what frees the slot of a client that went away.
    return web.AppRunner(
        app,
        keepalive_timeout=keep_alive_s,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=0.01,
    )


async def _listen(runner: web.AppRunner, host: str, port: int) -> int:
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    return runner.addresses[0][1]


async def _cut(runner: web.AppRunner) -> None:
    for handler in list(runner.server.connections) if runner.server else []:
        if handler.transport:
            handler.transport.abort()
    await runner.cleanup()


def _error(code: int, message: str, kind: str) -> web.Response:
    return web.json_response(
        {"error": {"code": code, "message": message, "type": kind}}, status=code
    )


def _usage(body: Any, count: int) -> dict[str, int]:
    prompt = len(json.dumps(body)) // 4
    return {
        "prompt_tokens": prompt,
        "completion_tokens": count,
        "total_tokens": prompt + count,
    }


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


# -- as a program ------------------------------------------------------------------------------


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fakes.engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--kind", default="llamacpp")
    parser.add_argument("--model", default="fake")
    parser.add_argument("--load-delay", type=float, default=0.0)
    parser.add_argument("--first-token-delay", type=float, default=0.0)
    parser.add_argument("--token-delay", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--crash-after", type=int)
    parser.add_argument("--hang-after", type=int)
    parser.add_argument("--health-hangs", action="store_true")
    parser.add_argument("--no-metrics", action="store_true")
    parser.add_argument("--keep-alive", type=float, default=5.0)
    parser.add_argument("--exit-code-at-start", type=int)
    parser.add_argument("--last-words", default="", help="said before that exit")
    parser.add_argument("--ignore-sigterm", action="store_true")
    return parser.parse_args()


def _behaviour(arguments: argparse.Namespace) -> Behaviour:
    return Behaviour(
        kind=arguments.kind,
        model=arguments.model,
        load_s=arguments.load_delay,
        first_token_s=arguments.first_token_delay,
        token_s=arguments.token_delay,
        tokens=arguments.tokens,
        slots=arguments.slots,
        crash_after=arguments.crash_after,
        hang_after=arguments.hang_after,
        health_hangs=arguments.health_hangs,
        has_metrics=not arguments.no_metrics,
        keep_alive_s=arguments.keep_alive,
        exit_code_at_start=arguments.exit_code_at_start,
        ignores_sigterm=arguments.ignore_sigterm,
    )


def _log(letter: str, text: str) -> None:
    print(f"0.00.000.001 {letter} {text}", flush=True)


def _die() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


async def _main(arguments: argparse.Namespace) -> None:
    behaviour = _behaviour(arguments)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if behaviour.ignores_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if arguments.host == "0.0.0.0":
        serving = FakeFleet(behaviour).serving(arguments.host, arguments.port)
    else:
        engine = FakeEngine(behaviour, on_crash=_die)
        serving = engine.serving(arguments.host, arguments.port)
    _log("I", "srv    load_model: loading model '/fake.gguf'")
    async with serving as up:
        _log("I", f"srv  llama_server: listening on http://{arguments.host}:{up.port}")
        await stop.wait()
    _log("I", "srv    operator(): cleaning up before exit...")


def main() -> None:
    """Run one engine (or, on 0.0.0.0, one per loopback address) until it is told to stop."""
    arguments = _arguments()
    if arguments.exit_code_at_start is not None:
        print(arguments.last_words, flush=True)
        raise SystemExit(arguments.exit_code_at_start)
    asyncio.run(_main(arguments))


if __name__ == "__main__":
    main()
