"""Who is next? Performs what the queues of all models decide, and tells Demand who waits.

One owner of all waiting: requests enter, are sent, put back or refused here and nowhere else.
"""

import asyncio
import itertools
from collections.abc import Sequence

from berth.gateway.catalog import Catalog, Route, Served, verdict
from berth.gateway.demand import DemandBook, Entry
from berth.gateway.errors import Refused
from berth.gateway.queueing import Effect, Queue, Refuse, Reject, Send
from berth.reasons import State

REST_S = 0.5
"""How long a runner that refused a request is left alone."""


class Turn:
    """One request's place in the order of its model."""

    __slots__ = ("_future", "error", "line", "route", "ticket")

    def __init__(self, ticket: int, line: "Line") -> None:
        self.ticket = ticket
        self.line = line
        self.route: Route | None = None
        self.error: Refused | None = None
        self._future: asyncio.Future[None] | None = None

    @property
    def position(self) -> int:
        """1 for the next to be served."""
        return self.line.queue.position(self.ticket)

    async def settled(self, timeout: float) -> bool:
        """Wait for a runner or a refusal; False when ``timeout`` seconds passed without."""
        if self.route is not None or self.error is not None:
            return True
        self._future = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(max(0.0, timeout)):
                await self._future
        except TimeoutError:
            return False
        finally:
            self._future = None
        return True

    def settle(self, *, route: Route | None = None, error: Refused | None = None) -> None:
        self.route, self.error = route, error
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Line:
    """One model's queue with those who stand in it."""

    __slots__ = ("entry", "key", "queue", "refused", "routes", "served", "told", "turns")

    def __init__(self, key: str, queue: Queue, entry: Entry) -> None:
        self.key = key
        self.queue = queue
        self.entry = entry
        self.turns: dict[int, Turn] = {}
        self.routes: dict[str, Route] = {}
        self.told = 0
        self.served = 0
        self.refused = 0

    @property
    def stranded(self) -> int:
        """Requests that wait while no runner takes any."""
        waiting = len(self.queue.waiting)
        return waiting if waiting and not self.queue.has_runner else 0


class Desk:
    """All lines of this gateway."""

    def __init__(self, catalog: Catalog, demand: DemandBook, *, limit: int) -> None:
        self._catalog = catalog
        self._demand = demand
        self._limit = limit
        self._tickets = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.lines: dict[str, Line] = {}
        catalog.changed.append(self.refresh)

    @property
    def is_empty(self) -> bool:
        """No request is anywhere."""
        return all(line.queue.is_empty for line in self.lines.values())

    # -- requests ------------------------------------------------------------------------------

    def has_choice(self, served: Served) -> bool:
        """Several runners could take a request, and one of them may have read its beginning."""
        return served.caches_prefix and len(self._catalog.routes(served.key)) > 1

    def enter(self, served: Served, prefix: int | None = None) -> Turn:
        """Get in line. Raises Refused when the queue is full or nobody should wait for it."""
        line = self._line(served)
        if not line.queue.has_runner:
            refused = verdict(served)
            if refused is not None:
                # The stored verdict may be old: the controller is asked to look again all the same.
                self._demand.linger(line.entry)
                line.refused += 1
                raise refused
        turn = Turn(next(self._tickets), line)
        line.turns[turn.ticket] = turn
        self._perform(line, line.queue.arrive(turn.ticket, prefix))
        if turn.error is not None:
            del line.turns[turn.ticket]
            raise turn.error
        return turn

    def leave(self, turn: Turn) -> None:
        """The request is over, however it ended. Safe to call twice."""
        line = turn.line
        if line.turns.pop(turn.ticket, None) is None:
            return
        if turn.route is not None:
            self._demand.used(line.entry)
        self._perform(line, line.queue.leave(turn.ticket))
        if line.queue.is_empty and self._catalog.get(line.key) is None:
            self._forget(line)

    def put_back(self, turn: Turn) -> None:
        """Its runner refused it or went away before the first byte: it waits again, at the head."""
        line, route = turn.line, turn.route
        if route is None:
            return
        turn.route = None
        self._perform(line, line.queue.put_back(turn.ticket))
        self._loop.call_later(REST_S, self._retry, line, route.uid)
        self._refuse_if_hopeless(line)

    def _retry(self, line: Line, runner: str) -> None:
        self._perform(line, line.queue.retry(runner))

    # -- the world -----------------------------------------------------------------------------

    def refresh(self, key: str) -> None:
        """A model or one of its routes changed."""
        line = self.lines.get(key)
        if line is None:
            return
        served = self._catalog.get(key)
        if served is not None:
            self._demand.entry(key, served.idle_timeout_s)
        routes = dict(self._catalog.routes(key))
        before, line.routes = line.routes, routes
        for uid in before.keys() - routes.keys():
            self._perform(line, line.queue.runner_closed(uid))
        for uid, route in routes.items():
            if before.get(uid) != route:
                self._perform(line, line.queue.runner_up(uid, route.parallel))
        self._refuse_if_hopeless(line)
        if line.queue.is_empty and served is None:
            self._forget(line)

    def touch_running(self) -> None:
        """Models with an answer under way are in use."""
        for line in self.lines.values():
            if line.queue.in_flight:
                self._demand.used(line.entry)

    def _line(self, served: Served) -> Line:
        line = self.lines.get(served.key)
        if line is None:
            entry = self._demand.entry(served.key, served.idle_timeout_s)
            line = self.lines[served.key] = Line(served.key, Queue(self._limit), entry)
            self.refresh(served.key)
        return line

    def _forget(self, line: Line) -> None:
        self.lines.pop(line.key, None)
        self._demand.forget(line.key)

    def _refuse_if_hopeless(self, line: Line) -> None:
        if not line.queue.waiting or line.queue.has_runner:
            return
        served = self._catalog.get(line.key)
        if served is None or verdict(served) is not None:
            self._perform(line, line.queue.refuse_waiting())

    # -- effects -------------------------------------------------------------------------------

    def _perform(self, line: Line, effects: Sequence[Effect]) -> None:
        for effect in effects:
            turn = line.turns.get(effect.ticket)
            if turn is None:
                continue
            match effect:
                case Send():
                    self._demand.used(line.entry)
                    turn.settle(route=line.routes[effect.runner])
                case Reject():
                    line.refused += 1
                    turn.settle(error=self._full(line))
                case Refuse():
                    line.refused += 1
                    turn.settle(error=self._gone_or_refused(line))
        if line.told or line.queue.waiting:
            self._tell(line)

    def _tell(self, line: Line) -> None:
        stranded = line.stranded
        if stranded != line.told:
            line.told = stranded
            self._demand.waiting(line.entry, stranded)

    def _full(self, line: Line) -> Refused:
        served = self._catalog.get(line.key)
        return Refused(
            "queue_full",
            f"{len(line.queue.waiting)} requests wait for this model already",
            facts=served.facts() if served else None,
            retry_after=served.load_time if served and served.state is not State.UP else 1,
        )

    def _gone_or_refused(self, line: Line) -> Refused:
        served = self._catalog.get(line.key)
        refused = verdict(served) if served is not None else None
        return refused or Refused(
            "model_not_found", f"The model {line.key} was deleted while the request waited"
        )
