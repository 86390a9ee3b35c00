"""What would come of it if these models were asked for? The planner's answer, in parts for people."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from berth.planner.actions import (
    Action,
    Drain,
    Place,
    Plan,
    Prepare,
    Refuse,
    Reserve,
    Stop,
    Verdict,
    Wait,
)
from berth.planner.explain import plan_if_asked
from berth.planner.plan import make_plan
from berth.planner.state import HOST, Claim, Model, Node, Runner, Stage, State
from berth.reasons import Reason


@dataclass(frozen=True)
class Victim:
    """A runner that would have to go, and why it may."""

    runner: Runner
    reason: Reason
    idle_s: float | None
    """Seconds since a request last ran; ``None``: it is in use or has never been up."""


@dataclass(frozen=True)
class Outcome:
    """What would become of one model."""

    model: Model
    verdict: Verdict
    placed: tuple[Prepare | Reserve, ...] = ()
    refusal: Refuse | Wait | None = None
    victims: tuple[Victim, ...] = ()
    then: "Outcome | None" = None
    """Where files are fetched first: what would come after, as things are now."""


@dataclass(frozen=True)
class Forecast:
    """The plan for models that are asked for, and what of it would not have happened anyway."""

    state: State
    plan: Plan
    outcomes: tuple[Outcome, ...]
    more: tuple[Action, ...]
    """Actions beside those of the outcomes that come of the asking."""


def forecast(state: State, keys: Iterable[str]) -> Forecast:
    """Ask for each of the models in one snapshot; nothing is touched. Raises KeyError."""
    asked = tuple(dict.fromkeys(keys))
    plan = plan_if_asked(state, *asked)
    before = make_plan(state)
    outcomes = tuple(_outcome(state, plan, key) for key in asked)
    told = {id(action) for action in plan.actions if _subject(action) in asked}
    told |= {id(a) for a in plan.actions if isinstance(a, Drain) and a.newcomer in asked}
    more = tuple(a for a in plan.actions if id(a) not in told and a not in before.actions)
    return Forecast(state, plan, tuple(_with_then(state, o) for o in outcomes), more)


def _subject(action: Action) -> str:
    return action.model if isinstance(action, Prepare | Reserve | Refuse | Wait) else ""


def _outcome(state: State, plan: Plan, key: str) -> Outcome:
    models = {model.key: model for model in state.models}
    verdict = next(verdict for verdict in plan.verdicts if verdict.model == key)
    placed = tuple(a for a in plan.actions if isinstance(a, Prepare | Reserve) and a.model == key)
    refusals = [a for a in plan.actions if isinstance(a, Refuse | Wait) and a.model == key]
    victims = tuple(victims_of(state, plan, newcomer=key))
    return Outcome(models[key], verdict, placed, refusals[-1] if refusals else None, victims)


def _with_then(state: State, outcome: Outcome) -> Outcome:
    """Once its files are where they would be fetched to, the model is planned again."""
    fetched = {a.place.node for a in outcome.placed if isinstance(a, Prepare)}
    if not fetched:
        return outcome
    there = replace(outcome.model, files=(), local_nodes=frozenset(fetched))
    models = tuple(there if model.key == there.key else model for model in state.models)
    later = replace(state, models=models)
    plan = plan_if_asked(later, outcome.model.key)
    return replace(outcome, then=_outcome(later, plan, outcome.model.key))


def victims_of(state: State, plan: Plan, *, newcomer: str) -> Iterator[Victim]:
    """The runners that a plan asks to drain for a model."""
    runners = {runner.uid: runner for runner in state.runners}
    models = {model.key: model for model in state.models}
    for action in plan.actions:
        if isinstance(action, Drain) and action.newcomer == newcomer:
            runner = runners[action.runner]
            yield Victim(runner, action.reason, idle_s(state, runner, models.get(runner.model)))


def idle_s(state: State, runner: Runner, model: Model | None) -> float | None:
    """Seconds since the runner's last use, as far as is known; ``None``: it is in use."""
    used = max(model.used if model is not None else 0.0, runner.up_since or 0.0)
    if runner.busy or runner.stage is not Stage.UP or not used:
        return None
    return max(0.0, state.now - used)


def where(state: State, place: Place) -> str:
    """``gpu-1 cuda:0,cuda:1``; a CPU runner's place is its node's ``host``."""
    node = next((node for node in state.nodes if node.name == place.node), None)
    names = device_names(node)
    devices = ",".join(names.get(uuid, uuid) for uuid in place.devices)
    return f"{place.node} {devices or HOST}"


def runner_where(state: State, runner: Runner) -> str:
    """Where a runner is."""
    return where(state, Place(runner.node, tuple(uuid for uuid, _ in runner.claim.devices)))


def device_names(node: Node | None) -> Mapping[str, str]:
    """``cuda:0`` by UUID."""
    return {d.uuid: f"cuda:{d.index}" for d in node.devices} if node is not None else {}


def holders(state: State, node: str, device: str) -> list[Runner]:
    """The runners that hold memory of a place (``cuda:0`` or the host), the largest first."""
    known = next((n for n in state.nodes if n.name == node), None)
    names = device_names(known)
    dims = {uuid for uuid, name in names.items() if name in device.split(",")} or {HOST}
    found = [
        (sum(held(runner.claim, dim) for dim in dims), runner)
        for runner in state.runners
        if runner.node == node and runner.stage is not Stage.PREPARING
    ]
    ordered = sorted(found, key=lambda pair: (-pair[0], pair[1].uid))
    return [runner for size, runner in ordered if size > 0]


def held(claim: Claim, dim: str) -> int:
    """Bytes of a claim on HOST or on a device."""
    return int(claim.on(dim))


def goes(plan: Plan) -> Mapping[str, Drain | Stop]:
    """By uid: the runners that a plan drains or stops."""
    return {a.runner: a for a in plan.actions if isinstance(a, Drain | Stop)}
