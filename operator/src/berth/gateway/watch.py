"""How does the catalogue learn of Models and Runners, and what is served while the API server is away?"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from berth.api.meta import Condition, moment_of, seconds_of
from berth.api.model import LastRefusal, Model, ModelHold
from berth.api.runner import Runner
from berth.gateway.catalog import Catalog, Held, Refusal, Route, Served
from berth.kube.cache import Cache, typed_cache
from berth.kube.client import Kube
from berth.reasons import ConditionType, State

log = logging.getLogger(__name__)
SAVE_AFTER_S = 2.0
PATIENCE_S = 3.0
"""How long a starting gateway waits for the API server before it serves its last list."""


def served_of(model: Model, default_idle_s: float) -> Served:
    """A Model as clients meet it."""
    status, spec, meta = model.status, model.spec, model.metadata
    ready = _condition(status.conditions, ConditionType.READY)
    state = State(ready.reason) if ready and ready.reason in _STATES else State.DOWN
    refusal = _refusal(status.last_refusal) if status.last_refusal else None
    unique = _condition(status.conditions, ConditionType.ID_UNIQUE)
    return Served(
        namespace=meta.namespace,
        name=meta.name,
        id=model.served_id,
        uid=meta.uid,
        aliases=tuple(spec.aliases),
        created=_created(meta.creation_timestamp),
        state=state,
        reason=_reason(status.conditions, refusal, state),
        message=ready.message if ready else "",
        since=ready.last_transition_time if ready else "",
        profile=status.active_profile or spec.profile or "",
        runtime=(spec.overrides.runtime if spec.overrides else None) or "",
        context_length=status.context_length or None,
        apis=tuple(status.apis),
        caches_prefix=bool(status.prefix_cache),
        next_retry=status.next_retry or "",
        load_seconds=tuple(status.load_seconds),
        idle_timeout_s=seconds_of(spec.idle_timeout) if spec.idle_timeout else default_idle_s,
        refusal=refusal,
        hold=_held(status.hold) if status.hold else None,
        is_current=(status.observed_generation or 0) >= meta.generation,
        is_suspended=spec.suspend,
        is_duplicate=unique is not None and unique.status == "False",
    )


def _held(hold: ModelHold) -> Held:
    ends = None
    with contextlib.suppress(ValueError):
        ends = moment_of(hold.since) + seconds_of(hold.budget) if hold.since else None
    return Held(hold.name, hold.reason, hold.budget, hold.since, ends)


def route_of(runner: Runner) -> Route | None:
    """Where to send, if anything may be sent: up, not draining, not being deleted."""
    status = runner.status
    is_open = (
        status.state == "Up"
        and bool(status.address)
        and runner.spec.drain is None
        and runner.metadata.deletion_timestamp is None
    )
    host, _, port = (status.address or "").rpartition(":")
    if not is_open or not port.isdigit():
        return None
    return Route(
        uid=runner.metadata.uid,
        model_key=runner.model_key,
        host=host.strip("[]"),
        port=int(port),
        parallel=runner.spec.parallel,
        name=runner.metadata.name,
    )


_STATES = frozenset(State)


def _condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((c for c in conditions if c.type == kind), None)


def _reason(conditions: Iterable[Condition], refusal: Refusal | None, state: State) -> str:
    """The cause behind the state, as one word."""
    if refusal is not None and state in (State.WAITING, State.DOWN):
        return refusal.reason
    causes = (c.reason for c in conditions if c.type != ConditionType.READY and c.status == "False")
    return next(causes, "")


def _refusal(last: LastRefusal) -> Refusal:
    places = tuple(place.wire() for place in last.places)
    return Refusal(last.reason, last.message, places)


def _created(stamp: str) -> int:
    with contextlib.suppress(ValueError):
        return int(moment_of(stamp))
    return 0


@dataclass
class Saved:
    """The last list, as it lies on disk."""

    models: list[Served]
    routes: list[Route]


class Feed:
    """Keeps the catalogue current, and its last list on disk (``file``) for a start without API."""

    def __init__(
        self, kube: Kube, catalog: Catalog, *, default_idle_s: float, file: Path | None
    ) -> None:
        self._catalog = catalog
        self._default_idle_s = default_idle_s
        self._file = file
        self._runner_routes: dict[str, Route] = {}
        self._save_is_due = False
        self.models: Cache[Model] = typed_cache(kube, Model, changed=self._model_changed)
        self.runners: Cache[Runner] = typed_cache(kube, Runner, changed=self._runner_changed)

    async def run(self) -> None:
        """List and watch for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.models.run())
            group.create_task(self.runners.run())
            group.create_task(self._become_ready())

    async def _become_ready(self) -> None:
        synced = asyncio.gather(self.models.synced.wait(), self.runners.synced.wait())
        try:
            await asyncio.wait_for(asyncio.shield(synced), PATIENCE_S)
        except TimeoutError:
            self._load()
            await synced
        for served in self._catalog.models():
            if self.models.get(served.key) is None:
                self._catalog.drop_model(served.key)
        known = {route.uid for route in self._runner_routes.values()}
        for key in self._catalog.route_keys():
            for uid in set(self._catalog.routes(key)) - known:
                self._catalog.drop_route(key, uid)
        self._catalog.is_ready = True
        self._save_later()

    # -- events --------------------------------------------------------------------------------

    def _model_changed(self, key: str, model: Model | None) -> None:
        if model is None or model.metadata.deletion_timestamp is not None:
            self._catalog.drop_model(key)
        else:
            served = served_of(model, self._default_idle_s)
            if self._catalog.get(key) != served:
                self._catalog.put_model(served)
        self._save_later()

    def _runner_changed(self, key: str, runner: Runner | None) -> None:
        before = self._runner_routes.get(key)
        now = route_of(runner) if runner is not None else None
        if before == now:
            return
        if before is not None and (now is None or now.uid != before.uid):
            del self._runner_routes[key]
            self._catalog.drop_route(before.model_key, before.uid)
        if now is not None:
            self._runner_routes[key] = now
            self._catalog.put_route(now)
        self._save_later()

    # -- disk ----------------------------------------------------------------------------------

    def _save_later(self) -> None:
        if self._file is not None and self._catalog.is_ready and not self._save_is_due:
            self._save_is_due = True
            asyncio.get_running_loop().call_later(SAVE_AFTER_S, self._save)

    def _save(self) -> None:
        self._save_is_due = False
        if self._file is None:
            return
        saved = Saved(self._catalog.models(), list(self._runner_routes.values()))
        try:
            fresh = self._file.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(saved))
            fresh.replace(self._file)
        except OSError as err:
            log.warning("the list of models is not kept on disk: %s", err)

    def _load(self) -> None:
        saved = read_saved(self._file)
        if saved is None:
            return
        log.warning("API server away: serving the last list, %d models", len(saved.models))
        for served in saved.models:
            self._catalog.put_model(served)
        for route in saved.routes:
            self._catalog.put_route(route)
        self._catalog.is_ready = True


def read_saved(file: Path | None) -> Saved | None:
    """The list on disk; None when there is none that can be read."""
    if file is None:
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Saved)
    except (OSError, msgspec.MsgspecError):
        return None


def fill_from(document: Any, catalog: Catalog) -> None:
    """The static mode: ``models: [{id, namespace, name, upstreams: [host:port], parallel, …}]``.

    Raises msgspec.ValidationError naming the field that is wrong.
    """
    for row in (document or {}).get("models") or []:
        given = dict(row)
        upstreams, parallel = given.pop("upstreams", []), int(given.pop("parallel", 4096))
        given = {"namespace": "default", "name": given["id"], **given}
        given.setdefault("state", State.UP if upstreams else State.DOWN)
        served = msgspec.convert(given, Served)
        catalog.put_model(served)
        for address in upstreams:
            host, _, port = address.rpartition(":")
            catalog.put_route(Route(address, served.key, host, int(port), parallel, address))
    catalog.is_ready = True
