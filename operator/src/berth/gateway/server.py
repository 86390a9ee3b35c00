"""Which answer does each path get? The gateway's front: APIs to the proxy, the rest answered here."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

from berth.gateway.away import HEADERS, is_browser, page
from berth.gateway.catalog import Served
from berth.gateway.errors import Refused
from berth.gateway.inbound import Request
from berth.gateway.metrics import CONTENT_TYPE
from berth.gateway.proxy import Proxy
from berth.gateway.reply import Reply
from berth.gateway.routes import BY_PATH
from berth.reasons import State

MODELS = "/v1/models"
READS = ("GET", "HEAD")
OWNER = "berth"


class Front:
    """Dispatches by path. ``refusing`` is set once a stopping gateway takes nothing new."""

    def __init__(self, proxy: Proxy, metrics: Callable[[], bytes]) -> None:
        self._proxy = proxy
        self._metrics = metrics
        self._clock = asyncio.get_running_loop().time
        self.is_refusing = False
        self._own: Mapping[str, Callable[[Request, Reply], None]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/health": self._health,
            "/metrics": self._metrics_page,
        }

    def handle(self, request: Request) -> Awaitable[bool]:
        """Every request of every client; whether its connection may go on."""
        path = request.path
        api = BY_PATH.get(path)
        if api is None and path.endswith("/") and len(path) > 1:
            path = path.rstrip("/")
            api = BY_PATH.get(path)
        may_pass = not self.is_refusing and not request.fault
        if api is not None and request.method == "POST" and may_pass:
            return self._proxy.handle(request, api, path)
        return self._own_answer(request, path, is_api=api is not None)

    async def _own_answer(self, request: Request, path: str, *, is_api: bool) -> bool:
        reply = Reply(request, self._clock)
        try:
            self._answer(request, reply, path, is_api=is_api)
        except Refused as refused:
            reply.refuse(refused, {})
        return reply.goes_on

    def _answer(self, request: Request, reply: Reply, path: str, *, is_api: bool) -> None:
        if request.fault:
            reply.keep_alive = False
            raise Refused("invalid_request", f"the request cannot be read: {request.fault}")
        own = self._own.get(path)
        if own is not None:
            _only(request, READS)
            return own(request, reply)
        caller = self._proxy.keys.caller(request)
        if self.is_refusing:
            reply.keep_alive = False
            raise Refused("gateway_stopping", "this gateway is shutting down")
        if is_api:
            _only(request, ("POST",))
        if path == MODELS:
            _only(request, READS)
            names = self._proxy.catalog.names(caller.scope)
            rows = [_row(name, served) for name, served in names if caller.may_use(served)]
            return _json(reply, 200, {"object": "list", "data": rows})
        if path.startswith(MODELS + "/"):
            _only(request, READS)
            name = unquote(path[len(MODELS) + 1 :])
            served = self._proxy.catalog.resolve(name, caller.scope)
            if not caller.may_use(served):
                raise Refused("model_not_allowed", f"your key may not use {name!r}", param="model")
            if served.state is not State.UP and is_browser(request):
                return reply.whole(503, HEADERS, page(served))
            return _json(reply, 200, _row(name, served))
        raise Refused("unknown_url", f"Unknown request URL: {request.method} {path[:200]}")

    # -- pages of its own ----------------------------------------------------------------------

    def _healthz(self, request: Request, reply: Reply) -> None:
        _json(reply, 200, {"status": "ok"})

    def _readyz(self, request: Request, reply: Reply) -> None:
        if self._proxy.stopping.is_set():
            _json(reply, 503, {"status": "draining"})
        elif not self._proxy.catalog.is_ready:
            _json(reply, 503, {"status": "starting"})
        else:
            _json(reply, 200, {"status": "ok"})

    def _health(self, request: Request, reply: Reply) -> None:
        """Queue counters for people; 503 once draining."""
        lines = self._proxy.desk.lines.values()
        accounts = self._proxy.ledger.accounts.values()
        outcomes: dict[str, int] = {}
        for account in accounts:
            for outcome, count in account.requests.items():
                outcomes[outcome] = outcomes.get(outcome, 0) + count
        is_draining = self._proxy.stopping.is_set()
        page = {
            "status": "draining" if is_draining else "ok",
            "running": sum(line.queue.in_flight for line in lines),
            "waiting": sum(len(line.queue.waiting) for line in lines),
            "served": outcomes.get("200", 0),
            "refused": sum(line.refused for line in lines),
            "timeouts": outcomes.get("model_not_ready", 0),
            "abandoned": sum(account.abandoned for account in accounts),
            "errors": sum(outcomes.get(code, 0) for code in _FAULTS),
        }
        _json(reply, 503 if is_draining else 200, page)

    def _metrics_page(self, request: Request, reply: Reply) -> None:
        reply.whole(200, {"Content-Type": CONTENT_TYPE}, self._metrics())


_FAULTS = ("internal_error", "runner_failed", "bad_runner_answer", "runner_died")


def _only(request: Request, methods: tuple[str, ...]) -> None:
    if request.method not in methods:
        raise Refused(
            "method_not_allowed",
            f"Not allowed to {request.method} here; use {methods[0]}",
            allow=", ".join(methods),
        )


def _row(name: str, served: Served) -> dict[str, Any]:
    """One Model as OpenAI lists it, with what only Berth knows beside it."""
    row: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": served.namespace or OWNER,
    }
    if served.context_length:
        row["context_length"] = served.context_length
    row["berth"] = served.facts()
    if served.apis:
        row["berth"]["apis"] = list(served.apis)
    return row


def _json(reply: Reply, status: int, value: Mapping[str, Any]) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    reply.whole(status, {"Content-Type": "application/json"}, body)
