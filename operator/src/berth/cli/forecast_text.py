"""How is a forecast said: in sentences and tables for people, in JSON for programs?"""

from collections.abc import Iterable, Iterator
from typing import Any

from berth.cli.forecast import Forecast, Outcome, Victim, holders, idle_s, runner_where, where
from berth.cli.show import table_lines
from berth.planner.actions import Action, PlaceNo, Prepare, Refuse, Reserve, Wait
from berth.planner.snapshot import dump
from berth.planner.state import Need, Runner, Stage, State
from berth.reasons import Reason
from berth.reasons import State as ModelState
from berth.units import show_bytes, show_seconds

MEMORY_REASONS = frozenset(
    {
        Reason.MEMORY,
        Reason.HOST_MEMORY,
        Reason.BUSY,
        Reason.LOAD_IN_PROGRESS,
        Reason.ONLY_PINNED,
        Reason.NEVER_FITS,
    }
)
PLACE_HEADERS = ("reason", "place", "needs", "has", "of", "short by", "message")


def forecast_lines(found: Forecast) -> list[str]:
    """The outcomes one after the other, then what else would happen."""
    lines: list[str] = []
    for outcome in found.outcomes:
        lines += [*([""] if lines else []), *outcome_lines(found.state, outcome)]
    if found.more:
        lines += ["", "Besides"]
        lines += [f"  {action_line(found.state, action)}" for action in found.more]
    return lines


def outcome_lines(state: State, outcome: Outcome) -> Iterator[str]:
    """One model: where it would go and who for it, or why nowhere."""
    yield f"{outcome.model.key}: {headline(state, outcome)}"
    for made in outcome.placed:
        yield f"  needs {need_text(made.need)}"
    yield from _victim_lines(state, outcome.victims)
    if outcome.then is not None:
        yield f"  then, as things are now: {headline(state, outcome.then)}"
        yield from _victim_lines(state, outcome.then.victims)
    if isinstance(outcome.refusal, Refuse):
        yield from (f"  {line}" for line in place_lines(outcome.refusal.places))


def headline(state: State, outcome: Outcome) -> str:
    """What would become of the model, in one sentence."""
    if outcome.placed:
        return "; ".join(_placed(state, made, outcome.victims) for made in outcome.placed)
    refusal = outcome.refusal
    if isinstance(refusal, Refuse):
        final = ", and no wait will help" if refusal.final else "; it would wait"
        stays = "stays up as it is; " if outcome.verdict.state is ModelState.UP else ""
        return f"{stays}refused ({refusal.reason}){final}: {refusal.message}"
    if isinstance(refusal, Wait):
        return f"it would wait ({refusal.reason}): {refusal.message}"
    said = outcome.verdict
    reason = f" ({said.reason})" if str(said.reason) != str(said.state) else ""
    return f"{said.state}{reason}: {said.message}"


def _placed(state: State, made: Prepare | Reserve, victims: tuple[Victim, ...]) -> str:
    place = where(state, made.place)
    if isinstance(made, Prepare):
        return (
            f"its files would be fetched to {made.place.node} for {place}; nobody is touched before"
        )
    if not victims:
        return f"it would be loaded on {place}, which has room"
    count = "1 runner" if len(victims) == 1 else f"{len(victims)} runners"
    return f"it would be loaded on {place} once {count} there made room"


def need_text(need: Need) -> str:
    """``18 GiB on the device and 1.2 GiB of the host``, with the estimator's own sentence."""
    host = f"{show_bytes(need.host)} of the host"
    sizes = " + ".join(show_bytes(size) for size in need.gpus)
    devices = "the device" if len(need.gpus) == 1 else "the devices"
    amount = f"{sizes} on {devices} and {host}" if need.gpus else host
    return f"{amount} ({need.text})" if need.text else amount


def _victim_lines(state: State, victims: Iterable[Victim]) -> Iterator[str]:
    for victim in victims:
        runner = victim.runner
        idle = "in use, its answers end first"
        if victim.idle_s is not None:
            idle = f"unused for {show_seconds(round(victim.idle_s))}"
        yield f"  would go: {runner.model} on {runner_where(state, runner)} ({runner.name}), {idle}, {_holds(runner)}"


def _holds(runner: Runner) -> str:
    devices = sum(size for _, size in runner.claim.devices)
    parts = [f"{show_bytes(devices)} of devices"] if devices else []
    return f"holds {' and '.join([*parts, f'{show_bytes(runner.claim.host)} of the host'])}"


def place_lines(places: Iterable[PlaceNo]) -> list[str]:
    """The arithmetic of every place that was tried."""
    rows = [_place_row(place) for place in places]
    return table_lines(PLACE_HEADERS, rows) if rows else []


def _place_row(place: PlaceNo) -> tuple[str, ...]:
    sizes = (place.need, place.have, place.capacity, max(0, place.need - place.have))
    shown = (show_bytes(size) if place.need else "" for size in sizes)
    return (place.reason, f"{place.node} {place.device}".strip(), *shown, place.message)


def take_lines(state: State, outcome: Outcome) -> Iterator[str]:
    """What it would take: on the place that lacks least, so many bytes, and who holds them."""
    refusal = outcome.refusal
    if not isinstance(refusal, Refuse):
        return
    short = [p for p in refusal.places if p.reason in MEMORY_REASONS and p.need > p.have]
    if not short:
        return
    best = min(short, key=lambda p: (p.need - p.have, p.node, p.device))
    place = f"{best.node} {best.device or 'host'}"
    yield f"{show_bytes(best.need - best.have)} more on {place}: it needs {show_bytes(best.need)}, {show_bytes(best.have)} is to be had"
    if best.reason is Reason.NEVER_FITS:
        yield "nothing that could be unloaded there is enough"
        return
    for runner in holders(state, best.node, best.device)[:8]:
        yield f"{runner.model} {_holds(runner)}: {_why_it_stays(state, runner)}"


def _why_it_stays(state: State, runner: Runner) -> str:
    model = next((m for m in state.models if m.key == runner.model), None)
    if model is not None and model.pinned:
        return "it is pinned"
    if runner.busy:
        return f"it has {runner.busy} requests in hand"
    if model is not None and model.waiting:
        return f"{model.waiting} requests wait for it"
    if runner.stage is not Stage.UP:
        return f"it is {str(runner.stage).lower()}"
    idle = idle_s(state, runner, model)
    return f"unused for {show_seconds(round(idle))}, it may go" if idle else "it may go"


def action_line(state: State, action: Action) -> str:
    """One action of a plan for people."""
    runners = {runner.uid: runner for runner in state.runners}
    match action:
        case Prepare() | Reserve():
            return f"{type(action).__name__} {action.model} on {where(state, action.place)}"
        case Refuse() | Wait():
            return f"{action.model}: {action.reason}: {action.message}"
        case _:
            runner = runners[action.runner]
            why = f": {action.reason}" if hasattr(action, "reason") else ""
            place = runner_where(state, runner)
            return f"{type(action).__name__} {runner.model} on {place} ({runner.name}){why}"


# JSON.


def forecast_wire(found: Forecast) -> dict[str, Any]:
    """What ``--json`` says: the outcomes, and every action as the planner made it."""
    return {
        "now": found.state.now,
        "models": [outcome_wire(outcome) for outcome in found.outcomes],
        "besides": [action_wire(action) for action in found.more],
        "actions": [action_wire(action) for action in found.plan.actions],
    }


def outcome_wire(outcome: Outcome) -> dict[str, Any]:
    """One model; bytes are numbers."""
    refusal = outcome.refusal
    return {
        "model": outcome.model.key,
        "state": str(outcome.verdict.state),
        "reason": str(outcome.verdict.reason),
        "message": outcome.verdict.message,
        "needs": [dump(need) for need in outcome.model.needs],
        "placed": [action_wire(made) for made in outcome.placed],
        "victims": [
            {
                "model": victim.runner.model,
                "runner": victim.runner.name,
                "node": victim.runner.node,
                "reason": str(victim.reason),
                "claim": dump(victim.runner.claim),
                "idleSeconds": victim.idle_s,
            }
            for victim in outcome.victims
        ],
        "refusal": action_wire(refusal) if refusal is not None else None,
        "then": outcome_wire(outcome.then) if outcome.then is not None else None,
    }


def action_wire(action: Action) -> dict[str, Any]:
    """One action of a plan."""
    return {"action": type(action).__name__, **dump(action)}
