"""Which nodes have holds taken, when do they end, and which models are to be loaded again after them?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from berth.api.hold import Hold, HoldStatus
from berth.api.meta import moment_of, seconds_of, timestamp
from berth.api.model import Model as ModelObject
from berth.api.model import ModelHold
from berth.controller.conditions import ConditionSheet
from berth.controller.observe_runners import Entry
from berth.controller.sightings import Sightings
from berth.controller.views import NodeView
from berth.planner.actions import Refuse
from berth.planner.state import Model, Stage
from berth.planner.wishes import is_held_down
from berth.policy import selects
from berth.reasons import ConditionType, Reason

HOLDER_SILENT_S = 2400.0


@dataclass(frozen=True)
class Grant:
    """What a hold that is not over has: all nodes that it names, or none and for whom it waits."""

    hold: Hold
    nodes: tuple[str, ...]
    waits_for: str = ""


def grant_holds(holds: Iterable[Hold], nodes: Iterable[NodeView]) -> dict[str, Grant]:
    """What each hold has, by its name; one that is over, or being deleted, is not in it.

    1. The eldest first, by creation and then by name.
    2. A hold that names a node which an elder one has or waits for waits for that one, and has
       nothing meanwhile: no node stands empty for somebody who cannot begin yet.
    3. Any other has all nodes that it names.
    """
    views, asked, found = list(nodes), dict[str, str](), dict[str, Grant]()
    for hold in sorted(holds, key=lambda h: (h.metadata.creation_timestamp, h.metadata.name)):
        if is_over(hold) or hold.metadata.deletion_timestamp:
            continue
        name = hold.metadata.name
        names = tuple(sorted(view.name for view in views if _names(hold, view)))
        elder = next((asked[node] for node in names if node in asked), "")
        found[name] = Grant(hold, () if elder else names, elder)
        for node in names:
            asked.setdefault(node, name)
    return found


def held_nodes(holds: Iterable[Hold], nodes: Iterable[NodeView]) -> dict[str, str]:
    """Node name → the Hold that has it."""
    grants = grant_holds(holds, nodes)
    return {node: name for name, grant in grants.items() for node in grant.nodes}


def is_over(hold: Hold) -> bool:
    """Released or expired: it keeps nothing any more, though the object is still there."""
    over = {ConditionType.RELEASED, ConditionType.EXPIRED}
    ended = any(c.type in over and c.status == "True" for c in hold.status.conditions)
    return hold.spec.released or ended


def _names(hold: Hold, view: NodeView) -> bool:
    if view.name in hold.spec.nodes:
        return True
    return bool(hold.spec.node_selector) and selects(hold.spec.node_selector, view.labels)


@dataclass(frozen=True)
class HoldView:
    """What a Hold's status is computed from."""

    nodes: tuple[str, ...] = ()
    """Nodes that it has now."""
    occupied: int = 0
    """Runners, and copies of weights in host memory, that are still on them."""
    waits_for: str = ""
    """The elder hold that keeps it from its nodes."""
    models: tuple[str, ...] = ()
    """Models that were stopped for it and are not up again."""


def hold_status(
    hold: Hold,
    view: HoldView,
    sightings: Sightings,
    now: float,
    *,
    silent_s: float = HOLDER_SILENT_S,
) -> HoldStatus:
    """Held once its nodes are empty; Expired when its holder is silent or its budget is spent.

    1. A hold that has expired stays so; one that says so is Released.
    2. A holder that renews must go on renewing: ``silent_s`` of silence end the hold.
    3. One that never renews ends with its budget, counted from when it got its nodes.
    4. It waits for an elder one, or for what is still on its nodes.
    """
    before = hold.status
    since = before.since or (timestamp(now) if view.nodes else None)
    sheet = ConditionSheet(before.conditions, generation=hold.metadata.generation, now=now)
    expired = [c for c in before.conditions if c.type == ConditionType.EXPIRED]
    if expired or is_over(hold):
        word, kind = (
            (Reason.EXPIRED, ConditionType.EXPIRED)
            if expired
            else (Reason.RELEASED, ConditionType.RELEASED)
        )
        sheet.put(ConditionType.HELD, "False", word)
        sheet.put(kind, "True", word, expired[0].message if expired else "")
    elif (why := _expired(hold, sightings, now, silent_s)) is not None:
        sheet.put(ConditionType.HELD, "False", Reason.EXPIRED, why)
        sheet.put(ConditionType.EXPIRED, "True", Reason.EXPIRED, why)
    else:
        text = _waits(view)
        sheet.put(ConditionType.HELD, "False" if text else "True", Reason.HELD, text)
    return HoldStatus(
        observed_generation=hold.metadata.generation,
        conditions=sheet.said(),
        since=since,
        nodes=list(view.nodes)[:256],
        models=list(view.models)[:256],
    )


def _waits(view: HoldView) -> str:
    """What keeps the hold from being held; empty: nothing."""
    if view.waits_for:
        return f"it waits for the hold {view.waits_for}, which came first"
    if not view.nodes:
        return "no node of the cluster is one that it names"
    if view.occupied:
        verb = "is" if view.occupied == 1 else "are"
        return f"{view.occupied} of runners and host copies {verb} still on its nodes"
    return ""


def _expired(hold: Hold, sightings: Sightings, now: float, silent_s: float) -> str | None:
    renewed = sightings.since("hold-renewed", hold.metadata.uid, hold.spec.renew_time, now)
    if hold.spec.renew_time is not None:
        silent = now - renewed
        return f"its holder was silent for {silent:.0f} s" if silent >= silent_s else None
    budget, since = seconds_of(hold.spec.budget), hold.status.since
    # The moment is a controller's own word: a new leader goes on counting where the old one was.
    spent = budget and since is not None and now - moment_of(since) >= budget
    return f"its budget of {hold.spec.budget} is spent" if spent else None


@dataclass(frozen=True)
class HoldsSeen:
    """The holds of one pass, as Models meet them."""

    grants: Mapping[str, Grant]

    @property
    def by_node(self) -> dict[str, Hold]:
        """Node name → the Hold that has it."""
        return {node: grant.hold for grant in self.grants.values() for node in grant.nodes}


def with_hold(model: Model, noted: ModelHold | None, grants: Mapping[str, Grant]) -> Model:
    """The planner's Model with what a hold owes to it; most know of none."""
    if noted is None or not noted.owed:
        return model
    if noted.name in grants:
        return replace(model, away_for=noted.name)
    return replace(model, returns=True)


def model_hold(
    model: ModelObject,
    seen: Model,
    entries: Iterable[Entry],
    refusal: Refuse | None,
    holds: HoldsSeen,
) -> ModelHold | None:
    """The hold that keeps a Model away, kept in its status so that nothing else need remember it.

    1. None while a runner of it is up and stays, wherever.
    2. None once somebody said that it is not to be loaded, or it failed for good.
    3. A runner of it leaves for a hold: one is owed.
    4. What was owed stays owed, after the hold too, until 1 or 2.
    5. It is wanted, and refused because nodes are held: nothing is owed, but the hold is named.
    """
    mine, before = list(entries), model.status.hold
    if any(e.stage is Stage.UP and e.runner and e.runner.spec.drain is None for e in mine):
        return None
    if seen.suspended or is_held_down(seen) or seen.restarts.terminal:
        return None
    by_node = holds.by_node
    leaving = [e.node for e in mine if _leaves_for_hold(e) and e.node in by_node]
    if leaving:
        return _note(by_node[leaving[0]], owed=True)
    if before is not None and before.owed:
        return before
    places = refusal.places if refusal is not None and refusal.reason is Reason.HELD else ()
    kept = [p.node for p in places if p.reason is Reason.HELD and p.node in by_node]
    return _note(by_node[min(kept)], owed=None) if kept else None


def _leaves_for_hold(entry: Entry) -> bool:
    order = entry.runner.spec.drain if entry.runner is not None else None
    return order is not None and order.reason == Reason.HELD


def _note(hold: Hold, *, owed: bool | None) -> ModelHold:
    return ModelHold(
        name=hold.metadata.name,
        reason=hold.spec.reason,
        budget=hold.spec.budget,
        since=hold.status.since or "",
        owed=owed,
    )


def owed_models(models: Iterable[ModelObject], hold: str) -> tuple[str, ...]:
    """Keys of the Models that were stopped for the hold and are not up again."""
    return tuple(
        sorted(
            model.key
            for model in models
            if model.status.hold is not None
            and model.status.hold.name == hold
            and model.status.hold.owed
        )
    )
