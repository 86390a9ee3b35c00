"""What would a change cost? Worst-case bytes before and after, by model and place, and who would go."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from berth.cli.forecast import Outcome, device_names, forecast
from berth.planner.actions import Drain, Plan, Prepare, Reserve, Stop
from berth.planner.arithmetic import Room, rooms
from berth.planner.plan import make_plan
from berth.planner.state import HOST, Claim, Model, Need, Node, Runner, Stage, State
from berth.planner.wishes import is_stale
from berth.units import Bytes


@dataclass(frozen=True)
class Way:
    """One way to run a model, by its devices; ``None`` where it does not exist on that side."""

    devices: int
    before: Need | None
    after: Need | None


@dataclass(frozen=True)
class ModelChange:
    """One model before and after, as if it were asked for; ``before`` is ``None`` for a new one."""

    key: str
    ways: tuple[Way, ...]
    before: Outcome | None
    after: Outcome


@dataclass(frozen=True)
class PlaceChange:
    """One place, in bytes: what the loaded runners may hold at their worst, and what there is."""

    node: str
    place: str
    """``cuda:0`` or ``host``."""
    held_before: Bytes
    held_after: Bytes
    room_before: Bytes
    """For runners in all: capacity less the reserve and the claims of others."""
    room_after: Bytes

    @property
    def over(self) -> int:
        """Bytes by which the worst case is above what there is."""
        return max(0, self.held_after - self.room_after)


@dataclass(frozen=True)
class Going:
    """A runner that the change alone makes the planner drain or stop."""

    runner: Runner
    action: Drain | Stop


@dataclass(frozen=True)
class Comparison:
    """All of it. Empty where the change costs nothing."""

    state: State
    models: tuple[ModelChange, ...]
    places: tuple[PlaceChange, ...]
    going: tuple[Going, ...]


def compare(before: State, after: State, keys: Sequence[str]) -> Comparison:
    """Two snapshots that differ by a change of objects; ``keys``: the Models that it is about.

    1. Each model by itself: its ways to run, and what would come of asking for it.
    2. Places whose worst case or room differs, with every loaded runner at its new size.
    3. Runners that go by the plan after, and not by the one before. A plan is one step: what is
       reloaded goes one at a time on each node.
    """
    plan = make_plan(after)
    return Comparison(
        after,
        tuple(_model(before, after, key) for key in keys),
        tuple(_places(before, after, plan, frozenset(keys))),
        tuple(_going(before, after, plan)),
    )


def _model(before: State, after: State, key: str) -> ModelChange:
    old = next((model for model in before.models if model.key == key), None)
    (then,) = forecast(after, [key]).outcomes
    first = forecast(before, [key]).outcomes[0] if old is not None else None
    return ModelChange(key, tuple(_ways(old, then.model)), first, then)


def _ways(old: Model | None, new: Model) -> Iterator[Way]:
    """By number of devices, those on devices first: of each the way that is tried first."""
    firsts = [_first_ways(old) if old is not None else {}, _first_ways(new)]
    for count in sorted({*firsts[0], *firsts[1]}, key=lambda n: (n == 0, n)):
        yield Way(count, firsts[0].get(count), firsts[1].get(count))


def _first_ways(model: Model) -> Mapping[int, Need]:
    found: dict[int, Need] = {}
    for need in model.needs:
        found.setdefault(len(need.gpus), need)
    return found


def _places(before: State, after: State, plan: Plan, keys: frozenset[str]) -> Iterator[PlaceChange]:
    grown = _grown(after, keys) + _new_copies(after, plan, keys)
    olds = {node.name: node for node in before.nodes}
    for node in after.nodes:
        first = rooms(olds[node.name], _on(before.runners, node))
        then = rooms(node, _on(grown, node))
        for dim, room in then.items():
            yield from _place(node, dim, first[dim], room)


def _place(node: Node, dim: str, first: Room, then: Room) -> Iterator[PlaceChange]:
    if (first.held, first.emptied) != (then.held, then.emptied):
        name = device_names(node).get(dim, HOST)
        yield PlaceChange(node.name, name, first.held, then.held, first.emptied, then.emptied)


def _on(runners: Sequence[Runner], node: Node) -> list[Runner]:
    return [runner for runner in runners if runner.node == node.name]


def _grown(state: State, keys: frozenset[str]) -> tuple[Runner, ...]:
    """The runners, those of the changed Models at the size that they would be loaded again with."""
    models = {model.key: model for model in state.models if model.key in keys}
    nodes = {node.name: node for node in state.nodes}
    return tuple(
        _resized(runner, models[runner.model], nodes.get(runner.node))
        if runner.model in models and is_stale(models[runner.model], runner)
        else runner
        for runner in state.runners
    )


def _resized(runner: Runner, model: Model, node: Node | None) -> Runner:
    """On the devices that it has, in the first way that they could hold; else in the last one."""
    uuids = tuple(uuid for uuid, _ in runner.claim.devices)
    ways = [need for need in model.needs if len(need.gpus) == len(uuids)]
    if not ways or node is None:
        return runner
    emptied = {dim: room.emptied for dim, room in rooms(node, ()).items()}
    fitting = [
        need
        for need in ways
        if all(size <= emptied.get(uuid, size) for uuid, size in zip(uuids, need.gpus, strict=True))
    ]
    need = (fitting or ways[-1:])[0]
    claim = Claim(need.host, tuple(zip(uuids, need.gpus, strict=True)))
    return replace(runner, claim=claim, measured=())


def _new_copies(state: State, plan: Plan, keys: frozenset[str]) -> tuple[Runner, ...]:
    """Runners that the change makes the plan add: of Models none of whose runners is replaced."""
    models = {model.key: model for model in state.models}
    stale = {r.model for r in state.runners if r.model in keys and is_stale(models[r.model], r)}
    made = (a for a in plan.actions if isinstance(a, Prepare | Reserve))
    return tuple(
        Runner(
            uid=f"new-{number}",
            name=f"new-{number}",
            model=action.model,
            node=action.place.node,
            claim=action.claim,
            stage=Stage.RESERVED,
        )
        for number, action in enumerate(made)
        if action.model in keys - stale and not getattr(action, "runner", "")
    )


def _going(before: State, after: State, plan: Plan) -> Iterator[Going]:
    """Who drains or stops by the plan after and not by the one before."""
    anyway = {a.runner for a in make_plan(before).actions if isinstance(a, Drain | Stop)}
    runners = {runner.uid: runner for runner in after.runners}
    for action in plan.actions:
        if isinstance(action, Drain | Stop) and action.runner not in anyway:
            yield Going(runners[action.runner], action)
