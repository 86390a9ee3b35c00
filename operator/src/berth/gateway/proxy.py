"""How does one request get its answer: read, resolved, waited for, sent, passed on?"""

import asyncio
import itertools
import logging
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from berth.gateway.accounting import Call, Ledger
from berth.gateway.body import Fields, Spooled, Store, fields_of, read_body
from berth.gateway.catalog import Catalog, Served
from berth.gateway.desk import Desk, Turn
from berth.gateway.errors import Refused
from berth.gateway.frames import error_event, keepalive
from berth.gateway.headers import STREAM_LINES, AnswerHead, addressed, request_head
from berth.gateway.inbound import Request
from berth.gateway.keys import Caller, Keys
from berth.gateway.limits import Meters
from berth.gateway.prefix import prefix_of
from berth.gateway.reply import Reply
from berth.gateway.routes import Api, Dialect
from berth.gateway.upstream import ConnectError, Connection, Pool, UpstreamError
from berth.reasons import State

log = logging.getLogger(__name__)
DEATHS_MAX = 3
"""A request on which so many runners died in a row is not given to a fourth."""
LOADING_MAX = 64 << 10


@dataclass(frozen=True)
class Limits:
    """How long and how much."""

    stream_wait_s: float = 900.0
    whole_wait_s: float = 600.0
    keepalive_s: float = 10.0


@dataclass
class Proxy:
    """What one request needs of the rest of the gateway."""

    catalog: Catalog
    desk: Desk
    pool: Pool
    store: Store
    keys: Keys
    ledger: Ledger
    limits: Limits
    stopping: asyncio.Event

    def __post_init__(self) -> None:
        self._seed = os.urandom(6).hex()
        self._numbers = itertools.count(1)
        self._time = asyncio.get_running_loop().time
        self.meters = Meters(self._time)
        self.live: set[Exchange] = set()

    async def handle(self, request: Request, api: Api, path: str) -> bool:
        """One request of an API, from here to the last byte of its answer."""
        request_id = request.header(b"x-request-id")
        if not _may_pass(request_id):
            request_id = f"{self._seed}-{next(self._numbers):x}"
        call = Call(request_id, path, self._time())
        exchange = Exchange(self, request, api, call)
        self.ledger.open(call)
        self.live.add(exchange)
        try:
            await exchange.run()
        except Refused as refused:
            call.error = refused.kind.code
            exchange.fail(refused)
        except asyncio.CancelledError:
            call.error = "client_gone"
            raise
        except Exception:
            log.exception("request %s failed by a bug", request_id)
            call.error = "internal_error"
            exchange.fail(Refused("internal_error", f"internal error, request {request_id}"))
        finally:
            self.live.discard(exchange)
            exchange.note()
            self.ledger.close(call)
        return exchange.reply.goes_on

    def find(self, request: Request, fields: Fields, caller: Caller) -> Served:
        """The Model that is asked for, by the body, else by the query. Raises Refused."""
        name = fields.model if fields.model is not None else _query_model(request)
        if not name:
            raise Refused("missing_model", "you must provide a model parameter", param="model")
        served = self.catalog.resolve(name, caller.scope)
        if not caller.may_use(served):
            raise Refused("model_not_allowed", f"your key may not use {name!r}", param="model")
        return served


class Exchange:
    """One request and its answer."""

    def __init__(self, proxy: Proxy, request: Request, api: Api, call: Call) -> None:
        self._proxy = proxy
        self._request = request
        self._api = api
        self._call = call
        self._time = proxy._time
        self._name = ""
        self.reply = Reply(request, self._time)
        if proxy.stopping.is_set():
            # The next request of this connection belongs to another gateway.
            self.reply.keep_alive = False
        self._is_early = False
        """The client already has a head and keepalive frames, of ours."""
        self._deaths = 0

    @property
    def progress(self) -> int | None:
        """Bytes of the answer; None while no runner has the request."""
        return self.reply.bytes_out if self._call.sent else None

    def facts(self) -> dict[str, Any]:
        """What a stall is told with."""
        call = self._call
        return {"model": call.model, "runner": call.runner, "request": call.id}

    async def run(self) -> None:
        """Raises Refused; otherwise the answer is out, whole or visibly cut."""
        proxy, call = self._proxy, self._call
        caller = proxy.keys.caller(self._request)
        call.caller = caller.name
        if caller.is_unlimited:
            await self._pass_on(caller)
        else:
            with proxy.meters.admitted(caller):
                await self._pass_on(caller)

    async def _pass_on(self, caller: Caller) -> None:
        proxy, call = self._proxy, self._call
        body = await read_body(self._request, proxy.store)
        try:
            call.bytes_in = len(body)
            content_type = self._request.header(b"content-type")
            fields = fields_of(body, content_type)
            served = proxy.find(self._request, fields, caller)
            call.model = served.key
            self._check_api(served)
            # Engines differ on other values than true; a head of ours would be a guess at theirs.
            call.stream = fields.stream is True
            self._name = str(fields.model or served.id)
            prefix = prefix_of(body) if proxy.desk.has_choice(served) else None
            turn = proxy.desk.enter(served, prefix)
            try:
                await self._answer(turn, body)
            finally:
                proxy.desk.leave(turn)
        finally:
            proxy.store.take_back(body)

    def _check_api(self, served: Served) -> None:
        """Raises Refused when the model's engine does not speak this API. Unknown: it is asked."""
        if served.apis and self._api.name not in served.apis:
            spoken = ", ".join(sorted(served.apis))
            raise Refused(
                "api_not_offered",
                f"model {served.id} does not offer the API {self._api.name} ({self._call.path});"
                f" it offers {spoken}",
                param="model",
                facts={"model": served.key, "apis": sorted(served.apis)},
            )

    async def _answer(self, turn: Turn, body: bytes | Spooled) -> None:
        request, call = self._request, self._call
        head = request_head(
            method=request.method,
            target=_target(request, call.path),
            headers=request.headers,
            size=len(body),
            request_id=call.id,
            forwarded_for=request.connection.remote,
        )
        while True:
            if turn.route is None:
                await self._wait(turn)
            connection = await self._send(turn, head, body)
            if connection is not None:
                break
            call.retries += 1
        try:
            await self._relay(connection)
        finally:
            connection.release()

    # -- waiting -------------------------------------------------------------------------------

    async def _wait(self, turn: Turn) -> None:
        """Until a runner is given. Raises Refused when the model will not come, or not in time."""
        limits = self._proxy.limits
        speaks = self._call.stream and self._api.dialect is not Dialect.NONE
        deadline = self._call.began + (limits.stream_wait_s if speaks else limits.whole_wait_s)
        if speaks and turn.line.stranded and not self._is_early:
            # Nobody can say how long a load takes: the client gets its head at once. For a runner
            # that is merely busy it comes with the first keepalive, so that errors keep a status.
            self._begin_early(turn)
        while True:
            left = deadline - self._time()
            pause = min(left, limits.keepalive_s) if speaks else left
            if await turn.settled(pause):
                break
            if self._time() >= deadline:
                raise self._too_long(turn)
            if not self._is_early:
                self._begin_early(turn)
            else:
                self._keepalive(turn)
        if turn.error is not None:
            raise turn.error

    def _begin_early(self, turn: Turn) -> None:
        self._is_early = True
        lines = [b"Content-Type: text/event-stream; charset=utf-8\r\n", *STREAM_LINES]
        lines.append(b"X-Request-Id: %b\r\n" % self._call.id.encode("latin-1"))
        for name, value in self._facts(turn).items():
            if isinstance(value, str | int) and name in _IN_HEADERS:
                lines.append(
                    f"X-Berth-{_IN_HEADERS[name]}: {value}\r\n".encode("latin-1", "replace")
                )
        self.reply.begin(200, lines, length=None)
        self._keepalive(turn)

    def _keepalive(self, turn: Turn) -> None:
        frame = keepalive(
            self._api.dialect,
            model=self._name,
            request_id=self._call.id,
            facts=self._facts(turn),
        )
        self.reply.say(frame)

    def _facts(self, turn: Turn) -> dict[str, Any]:
        """What is known of the wait."""
        served = self._proxy.catalog.get(turn.line.key)
        waited = self._time() - self._call.began
        facts: dict[str, Any] = served.facts() if served else {"model": turn.line.key}
        facts["position"] = turn.position
        facts["waited"] = round(waited)
        if served is not None and served.load_seconds and served.state is not State.UP:
            facts["timeLeft"] = max(1, round(served.load_time - waited))
        return facts

    def _too_long(self, turn: Turn) -> Refused:
        served = self._proxy.catalog.get(turn.line.key)
        facts = self._facts(turn)
        return Refused(
            "model_not_ready",
            f"model {self._name} is {facts.get('state', 'away')} after {facts['waited']} s of waiting",
            facts=facts,
            retry_after=served.load_time if served else None,
        )

    # -- sending -------------------------------------------------------------------------------

    async def _send(self, turn: Turn, head: bytes, body: bytes | Spooled) -> Connection | None:
        """The runner's answer, its head read; None when the request has to wait again.

        Raises Refused ``runner_failed`` when too many runners died on it.
        """
        route, call = turn.route, self._call
        if route is None:
            return None
        call.sent = call.sent or self._time()
        call.runner = route.name or route.uid
        try:
            connection = await self._proxy.pool.request(
                (route.host, route.port), addressed(head, route.host, route.port), body
            )
            if not connection.has_begun:
                await connection.begin(self._proxy.limits.keepalive_s)
        except ConnectError:
            self._proxy.desk.put_back(turn)
            return None
        except UpstreamError as err:
            self._deaths += 1
            if self._deaths >= DEATHS_MAX:
                raise Refused("runner_failed", f"{self._deaths} runners failed: {err}") from err
            self._proxy.desk.put_back(turn)
            return None
        if connection.status == 503 and await _is_loading(connection):
            connection.abort()
            self._proxy.desk.put_back(turn)
            return None
        return connection

    # -- passing on ----------------------------------------------------------------------------

    async def _relay(self, connection: Connection) -> None:
        reply, call = self.reply, self._call
        head = AnswerHead(connection.headers, call.id)
        call.status = connection.status
        if self._is_early and not (connection.status == 200 and head.is_stream):
            raise await _not_a_stream(connection)
        if not self._is_early:
            reply.begin(connection.status, head.lines, length=head.length)
        reply.source = connection
        connection.attach(reply.push)
        reply.flush()
        while not connection.is_complete and connection.error is None:
            # Looked at before each wait: the first bytes, too, can be more than the client takes.
            if reply.is_pressed:
                await reply.drained()
                connection.resume()
            else:
                await connection.stirred()
        if connection.error is not None:
            self._end_broken(connection.error, is_stream=head.is_stream)

    def _end_broken(self, error: UpstreamError, *, is_stream: bool) -> None:
        """The runner died in the middle: a stream gets an error event, no ``[DONE]``, and an end."""
        self._call.error = "runner_died"
        if is_stream:
            refused = Refused("runner_died", f"the runner went away during the answer: {error}")
            if self.reply.tail and not self.reply.tail[-1].endswith(b"\n\n"):
                self.reply.say(b"\n\n")
            self.reply.say(error_event(self._api.dialect, refused.error()))
        self.reply.cut()

    # -- failing -------------------------------------------------------------------------------

    def fail(self, refused: Refused) -> None:
        """Tell the client, in the way that is still open."""
        reply = self.reply
        if self._is_early:
            reply.say(error_event(self._api.dialect, refused.error()))
            reply.end()
        elif not reply.has_begun:
            reply.refuse(refused, {"X-Request-Id": self._call.id})
        else:
            reply.cut()
        self._call.status = reply.status

    def note(self) -> None:
        """What the log and the counters want of the answer."""
        call, reply = self._call, self.reply
        # No cycle is left behind: the collector would have to search for it.
        reply.source = None
        call.first = reply.first_at
        call.bytes_out, call.events = reply.bytes_out, reply.events
        call.head, call.tail = reply.first, b"".join(reply.tail)


_IN_HEADERS = {
    "state": "State",
    "reason": "Reason",
    "position": "Queue-Position",
    "timeLeft": "Time-Left",
}


def _may_pass(request_id: str) -> bool:
    """It goes into headers and the log: neither may be made unreadable by it."""
    return 0 < len(request_id) <= 128 and request_id.isascii() and request_id.isprintable()


def _target(request: Request, path: str) -> str:
    """Path and query for the runner: the path as declared, the query as it came."""
    return path + request.query


def _query_model(request: Request) -> str:
    values = parse_qs(request.query[1:]).get("model")
    return values[0] if values else ""


async def _is_loading(connection: Connection) -> bool:
    """llama-server's word for an engine that is not ready. It is ours to wait, not the client's."""
    body = await connection.peek(LOADING_MAX)
    return b'"Loading model"' in body


async def _not_a_stream(connection: Connection) -> Refused:
    """An error of the engine after our stream has begun: its text, as an event."""
    body = await connection.peek(LOADING_MAX)
    text = body.decode("utf-8", "replace")
    return Refused(
        "bad_runner_answer",
        f"the runner answered {connection.status}: {text[:2000]}",
        facts={"status": connection.status},
    )
