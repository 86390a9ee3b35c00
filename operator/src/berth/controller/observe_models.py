"""Who wants which model, how much, and since when? Models and Demands in the planner's words."""

from collections.abc import Mapping
from dataclasses import dataclass

from berth.api.demand import Demand, Waiting
from berth.api.meta import ANNOTATION_LOAD, ANNOTATION_UNLOAD, moment_or_none, seconds_of
from berth.api.meta import Toleration as WireToleration
from berth.api.model import Model as ModelObject
from berth.controller.history import History
from berth.controller.memo import Memo
from berth.controller.priced import Priced
from berth.controller.sightings import Sightings
from berth.planner.state import Model, Need, Restarts, Toleration
from berth.reasons import Reason
from berth.units import Bytes

STALE_WAITING_S = 15.0
DEAD_WAITING_S = 60.0
HEALTHY_S = 90.0
_DEFAULT_DRAIN_S = 300.0
_DEFAULT_LOAD_S = 900.0
_UNKNOWN = Priced(blocked=Reason.READING_HEADER, blocked_message="its header is being read")


@dataclass(frozen=True)
class Defaults:
    """The cluster's settings for Models that leave a field out."""

    idle_timeout_s: float = 1800.0
    device: str = "auto"


def observe_model(
    model: ModelObject,
    demand: Demand | None,
    priced: Priced | None,
    *,
    sightings: Sightings,
    history: History,
    memo: Memo[Model],
    defaults: Defaults,
    now: float,
) -> Model:
    """One Model. What its gateways say is timed where it is seen, by the controller's clock."""
    priced = priced or _UNKNOWN
    timeout = model.spec.idle_timeout
    idle_s = defaults.idle_timeout_s if timeout is None else seconds_of(timeout)
    needs = history.larger(model.key, priced.settings_hash, priced.needs)
    now_so = (
        needs,
        idle_s,
        _waiting(model.key, demand, sightings, now),
        usedmoment_or_none(model.key, demand, idle_s, sightings, now),
        _by_hand(model, sightings, now),
        history.restarts(model.key, now),
    )
    return memo.get(
        model.key,
        (model, priced, defaults, now_so),
        lambda: _model(model, priced, defaults, now_so),
    )


_Now = tuple[
    tuple[Need, ...],
    float,
    tuple[int, float | None],
    float,
    tuple[float | None, float | None],
    Restarts,
]
"""Needs, idle timeout, requests that wait and since when, last used, asked by hand, restarts."""


def _model(model: ModelObject, priced: Priced, defaults: Defaults, now_so: _Now) -> Model:
    """What the Model says, what it costs, and what there is to say of it now."""
    spec, status = model.spec, model.status
    needs, idle_s, (waiting, waiting_since), used, (load_asked, unload_asked), restarts = now_so
    return Model(
        key=model.key,
        uid=model.metadata.uid,
        needs=needs,
        blocked=priced.blocked,
        blocked_message=priced.blocked_message,
        waiting=waiting,
        waiting_since=waiting_since,
        used=used,
        min_replicas=spec.min_replicas,
        max_replicas=max(spec.max_replicas, spec.min_replicas),
        pinned=spec.residency == "Pinned",
        pin_to=tuple(spec.pin_to),
        per_device=spec.replicas == "PerDevice",
        idle_timeout_s=idle_s,
        device=spec.device or defaults.device,
        priority=spec.priority,
        suspended=spec.suspend,
        load_asked=load_asked,
        unload_asked=unload_asked,
        not_before=moment_or_none(status.not_before),
        node_selector=spec.node_selector,
        tolerations=tuple(_toleration(t) for t in spec.tolerations),
        files=_to_fetch(priced),
        keeps_host=spec.residency == "Host",
        settings_hash=priced.settings_hash,
        profile=f"{model.metadata.namespace}/{spec.profile}" if spec.profile else "",
        load_seconds=_median(status.load_seconds),
        parallel=priced.parallel,
        drain_timeout_s=drain_timeout_s(priced),
        load_timeout_s=load_timeout_s(priced),
        restarts=restarts,
        local_nodes=priced.local_nodes,
        runs_code=frozenset(priced.runs_code),
        device_names=priced.device_names,
        # A release that did not note it has noted a load time whenever a model came up.
        autoload_done=bool(status.load_seconds) if status.autoloaded is None else status.autoloaded,
    )


def _to_fetch(priced: Priced) -> tuple[tuple[str, Bytes], ...]:
    """Files that a node must have; a mounted directory or claim is there or is not."""
    if priced.mount is not None:
        return ()
    return tuple((file.sha256 or "", Bytes(file.size)) for file in priced.files)


def drain_timeout_s(priced: Priced) -> float:
    drain = priced.fields.drain
    return seconds_of(drain.timeout) if drain else _DEFAULT_DRAIN_S


def load_timeout_s(priced: Priced) -> float:
    timeout = priced.fields.load_timeout
    return seconds_of(timeout) if timeout else _DEFAULT_LOAD_S


def _waiting(
    key: str, demand: Demand | None, sightings: Sightings, now: float
) -> tuple[int, float | None]:
    """Requests that wait by fresh beats, and since when the eldest gateway's entry is there."""
    total, since = 0, None
    for entry in demand.status.waiting if demand else ():
        if now - beat_seen(key, entry, sightings, now) >= STALE_WAITING_S or not entry.requests:
            continue
        total += entry.requests
        began = sightings.since("waiting-since", (key, entry.gateway), entry.since, now)
        since = began if since is None else min(since, began)
    return total, since


def beat_seen(key: str, entry: Waiting, sightings: Sightings, now: float) -> float:
    """When this gateway's entry last changed; a silent gateway's requests are gone with it."""
    said = (entry.beat, entry.requests, entry.since)
    return sightings.since("beat", (key, entry.gateway), said, now)


def dead_gateways(key: str, demand: Demand, sightings: Sightings, now: float) -> tuple[str, ...]:
    """Gateways whose entry has not changed for so long that nobody will take it out any more."""
    return tuple(
        entry.gateway
        for entry in demand.status.waiting
        if now - beat_seen(key, entry, sightings, now) >= DEAD_WAITING_S
    )


def usedmoment_or_none(
    key: str, demand: Demand | None, idle_s: float, sightings: Sightings, now: float
) -> float:
    """When a request last ran or ended; 0 when none ever did.

    A change is timed where it is seen. What is there at first sight was stamped by another clock:
    its age is taken as it stands but for two bounds, not negative, and so young that 90 s are left
    in which the gateways can say that the model is in use.
    """
    stamp = demand.status.used if demand else None
    if stamp is None:
        return 0.0
    if sightings.first("used", key):
        oldest = now - max(0.0, idle_s - HEALTHY_S)
        said = moment_or_none(stamp) or now
        # idleTimeout 0 never unloads; the stamp then only orders least recently used.
        clamped = min(said, now) if not idle_s else min(max(said, oldest), now)
        sightings.put("used", key, stamp, clamped)
    return sightings.since("used", key, stamp, now)


def _by_hand(
    model: ModelObject, sightings: Sightings, now: float
) -> tuple[float | None, float | None]:
    """When a load and an unload by hand were first seen, as far as they are not handled yet."""
    status = model.status
    return (
        _asked(model, ANNOTATION_LOAD, status.load_handled, sightings, now),
        _asked(model, ANNOTATION_UNLOAD, status.unload_handled, sightings, now),
    )


def _asked(
    model: ModelObject, annotation: str, handled: str | None, sightings: Sightings, now: float
) -> float | None:
    """When a wish by hand that was not acted on yet was first seen."""
    value = model.metadata.annotations.get(annotation)
    if not value or value[:128] == handled:
        return None
    return sightings.since(annotation, model.key, value, now)


def _toleration(wire: WireToleration) -> Toleration:
    return Toleration(
        key=wire.key or "",
        operator=wire.operator or "Equal",
        value=wire.value or "",
        effect=wire.effect or "",
    )


def _median(seconds: list[int]) -> float | None:
    return float(sorted(seconds)[len(seconds) // 2]) if seconds else None


def priced_of(prices: Mapping[str, Priced], model: ModelObject) -> Priced:
    return prices.get(model.key, _UNKNOWN)
