"""Which models are declared, which id means which, and where do their runners listen?

In production `watch` feeds it, in tests a hand, in the static mode a file. Reading never blocks.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from berth.gateway.errors import FINAL_REFUSALS, Refused
from berth.reasons import State

NAMESPACE_SEPARATOR = "::"


@dataclass(frozen=True)
class Refusal:
    """Why the planner said no the last time, with its numbers."""

    reason: str
    message: str = ""
    places: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Held:
    """The Hold that keeps a model away."""

    name: str
    reason: str = ""
    budget: str = ""
    since: str = ""
    ends: float | None = None
    """When its budget is spent, in seconds since the epoch; a holder may need longer."""

    def time_left(self) -> int:
        """Seconds of its budget that are left, by this machine's clock; 0 when it is spent."""
        return max(0, round(self.ends - time.time())) if self.ends is not None else 0

    def facts(self) -> dict[str, str]:
        known = {"name": self.name, "reason": self.reason, "budget": self.budget}
        return {key: value for key, value in known.items() if value} | (
            {"since": self.since} if self.since else {}
        )


@dataclass(frozen=True)
class Served:
    """A Model as clients meet it."""

    namespace: str
    name: str
    id: str
    uid: str = ""
    aliases: tuple[str, ...] = ()
    created: int = 0
    """Seconds since the epoch, of the object's creation."""
    state: State = State.DOWN
    reason: str = ""
    message: str = ""
    since: str = ""
    profile: str = ""
    runtime: str = ""
    context_length: int | None = None
    """Per request, not per runner."""
    apis: tuple[str, ...] = ()
    """Those that its engine speaks; none: not known yet."""
    caches_prefix: bool = False
    """Its engine reuses what it has read of a prompt."""
    next_retry: str = ""
    """When a failed model is tried again."""
    load_seconds: tuple[int, ...] = ()
    idle_timeout_s: float = 1800.0
    refusal: Refusal | None = None
    hold: Held | None = None
    is_current: bool = True
    """The status speaks of the present spec."""
    is_suspended: bool = False
    is_duplicate: bool = False
    """An older Model holds its id."""

    @cached_property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def load_time(self) -> int:
        """Seconds a start takes by experience, at least 1; 30 with no experience yet."""
        return max(1, round(statistics.median(self.load_seconds))) if self.load_seconds else 30

    def facts(self) -> dict[str, Any]:
        """What ``error.berth`` says of it; what is unknown is left out."""
        known = {
            "model": self.key,
            "state": self.state.value,
            "since": self.since,
            "reason": self.reason or (self.refusal.reason if self.refusal else ""),
            "message": self.message,
            "profile": self.profile,
            "nextRetry": self.next_retry,
        }
        facts: dict[str, Any] = {key: value for key, value in known.items() if value}
        if self.refusal is not None and self.refusal.places:
            facts["places"] = list(self.refusal.places)
        if self.hold is not None and self.state is State.HELD:
            facts["hold"] = self.hold.facts()
            if self.hold.time_left():
                facts["timeLeft"] = self.hold.time_left()
        return facts


@dataclass(frozen=True)
class Route:
    """A runner that may be sent requests."""

    uid: str
    model_key: str
    host: str
    port: int
    parallel: int = 1
    name: str = ""


@dataclass(frozen=True)
class Scope:
    """What one caller may see. ``None`` means everything."""

    namespaces: frozenset[str] | None = None

    def sees(self, served: Served) -> bool:
        return self.namespaces is None or served.namespace in self.namespaces


EVERYTHING = Scope()


class Catalog:
    """Models by key and by every name they answer to, and the routes of each."""

    def __init__(self) -> None:
        self._models: dict[str, Served] = {}
        self._by_id: dict[str, dict[str, Served]] = {}
        self._routes: dict[str, dict[str, Route]] = {}
        self.is_ready = False
        """The first list has been read."""
        self.changed: list[Callable[[str], None]] = []
        """Called with a model's key after it, or one of its routes, changed."""

    # -- writing -------------------------------------------------------------------------------

    def put_model(self, served: Served) -> None:
        self._unindex(served.key)
        self._models[served.key] = served
        for name in (served.id, *served.aliases):
            self._by_id.setdefault(name, {})[served.key] = served
        self._tell(served.key)

    def drop_model(self, key: str) -> None:
        self._unindex(key)
        if self._models.pop(key, None) is not None:
            self._tell(key)

    def put_route(self, route: Route) -> None:
        self._routes.setdefault(route.model_key, {})[route.uid] = route
        self._tell(route.model_key)

    def drop_route(self, model_key: str, uid: str) -> None:
        if self._routes.get(model_key, {}).pop(uid, None) is not None:
            self._tell(model_key)

    def _unindex(self, key: str) -> None:
        before = self._models.get(key)
        for name in (before.id, *before.aliases) if before else ():
            holders = self._by_id[name]
            holders.pop(key, None)
            if not holders:
                del self._by_id[name]

    def _tell(self, key: str) -> None:
        for listener in self.changed:
            listener(key)

    # -- reading -------------------------------------------------------------------------------

    def get(self, key: str) -> Served | None:
        return self._models.get(key)

    def routes(self, key: str) -> dict[str, Route]:
        return self._routes.get(key, {})

    def route_keys(self) -> list[str]:
        """Models that have, or had, a runner."""
        return list(self._routes)

    def models(self, scope: Scope = EVERYTHING) -> list[Served]:
        """All that the caller sees, in an order that stays: oldest first."""
        seen = (served for served in self._models.values() if scope.sees(served))
        return sorted(seen, key=lambda served: (served.created, served.key))

    def names(self, scope: Scope = EVERYTHING) -> Iterator[tuple[str, Served]]:
        """Every id that a list shows, with its Model: short where it is clear, else with namespace."""
        for served in self.models(scope):
            yield self.public_id(served, scope), served

    def public_id(self, served: Served, scope: Scope = EVERYTHING) -> str:
        """The id that `resolve` takes back to this Model."""
        if self._holders(served.id, scope) == [served]:
            return served.id
        return f"{served.namespace}{NAMESPACE_SEPARATOR}{served.id}"

    def resolve(self, name: str, scope: Scope = EVERYTHING) -> Served:
        """The Model that a client means.

        Raises Refused ``model_not_found`` for an id that nobody declares, ``ambiguous_model`` when
        several hold it and none is the acknowledged first.
        """
        holders = self._holders(name, scope) or self._qualified(name, scope)
        if len(holders) == 1:
            return holders[0]
        if holders:
            names = ", ".join(f"{h.namespace}{NAMESPACE_SEPARATOR}{name}" for h in holders)
            raise Refused(
                "ambiguous_model",
                f"the id {name!r} is held by several models; ask for one of {names}",
                param="model",
            )
        if not self.is_ready:
            raise Refused("gateway_starting", "the gateway has not read the list of models yet")
        raise Refused("model_not_found", f"The model {name[:253]!r} does not exist", param="model")

    def _holders(self, name: str, scope: Scope) -> list[Served]:
        """Who answers to a short id: all that claim it, or the one that is no duplicate."""
        claims = self._by_id.get(name)
        if not claims:
            return []
        if len(claims) == 1 and scope is EVERYTHING:
            return list(claims.values())
        seen = _oldest_first(served for served in claims.values() if scope.sees(served))
        firsts = [served for served in seen if not served.is_duplicate]
        return firsts if len(seen) > 1 and len(firsts) == 1 else seen

    def _qualified(self, name: str, scope: Scope) -> list[Served]:
        namespace, separator, short = name.partition(NAMESPACE_SEPARATOR)
        if not separator:
            return []
        claims = self._by_id.get(short, {}).values()
        found = [s for s in claims if s.namespace == namespace and scope.sees(s)]
        firsts = [served for served in found if not served.is_duplicate]
        return firsts if len(firsts) == 1 else _oldest_first(found)


def _oldest_first(found: Iterable[Served]) -> list[Served]:
    return sorted(found, key=lambda served: (served.created, served.key))


def verdict(served: Served) -> Refused | None:
    """Why nobody should wait for this model; None when it may come.

    1. Suspended: the user said so.
    2. The status speaks of an older spec: it may come, whatever it said before.
    3. Failed: somebody must change something.
    4. Held: it is back after the hold.
    5. Refused for a reason that waiting does not mend.
    """
    if served.is_suspended:
        return _no(served, "model_suspended", "is suspended")
    if not served.is_current:
        return None
    if served.state is State.FAILED:
        return _no(served, "model_failed", "cannot be loaded")
    if served.state is State.HELD:
        return _no(served, "model_held", "is held")
    if served.refusal is not None and served.state in (State.WAITING, State.DOWN):
        code = FINAL_REFUSALS.get(served.refusal.reason)
        if code is not None:
            return _no(served, code, "is refused", served.refusal.message)
    return None


def _no(served: Served, code: str, what: str, message: str = "") -> Refused:
    because = message or served.message
    return Refused(
        code,
        f"model {served.id} {what}{': ' if because else ''}{because}",
        param="model",
        facts=served.facts(),
        retry_after=served.load_time + (served.hold.time_left() if served.hold else 0),
    )
