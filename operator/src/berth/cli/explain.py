"""Why is a model not loaded, and what would it take? What the objects say, and what the planner does."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from berth.api.demand import Demand
from berth.api.model import LastRefusal, Model, PlaceRefusal
from berth.api.runner import Runner
from berth.cli.cluster import Target, cluster_options, connected, get, list_all, run
from berth.cli.forecast import Forecast, forecast
from berth.cli.forecast_text import forecast_lines, forecast_wire, take_lines
from berth.cli.models import as_wire, ready, state_of
from berth.cli.plan import snapshot_option
from berth.cli.read import Reading
from berth.cli.scene import dumped_scene, key_of, live_scene
from berth.cli.show import show_age, show_json, table_lines
from berth.kube.client import ApiError
from berth.planner.actions import Refuse
from berth.reasons import Reason, State
from berth.units import show_bytes

TODO: Mapping[str, str] = {
    Reason.NEVER_FITS: "use a smaller model, quantisation or context, or a node with more memory",
    Reason.ONLY_PINNED: "unload or unpin a model that is in the way (residency: Pinned)",
    Reason.NO_NODE: "compare the Model's nodeSelector and tolerations with the nodes",
    Reason.NO_DEVICE: "compare the Model's device with `kubectl get nodeinventories`",
    Reason.CPU_NOT_ALLOWED: "allow CPU runners in the Residency (cpuRunners: Always), or add a GPU",
    Reason.UNTRUSTED_PATH: "list the path in hostPaths of the Residency of those nodes",
    Reason.UNTRUSTED_CODE: "list it in trust of the Residency of those nodes",
    Reason.NO_AGENT: "see why Berth's agent is not ready there (`berth doctor`)",
    Reason.PROFILE_NOT_FOUND: "create the Profile, or name another in spec.profile",
    Reason.SECRET_NOT_FOUND: "create the Secret, and let Berth read it (docs/how-to/sources.md)",
    Reason.SOURCE_UNAUTHORIZED: "give the source a token (docs/how-to/sources.md)",
    Reason.SOURCE_NOT_FOUND: "check repo, revision and files, or the address, of spec.source",
    Reason.SOURCE_FORBIDDEN: "allow the host with the setting SOURCE_ALLOW",
    Reason.CONTEXT_TOO_LONG: "lower contextLength, or raise the Profile's maxContextLength",
    Reason.SUSPENDED: "set spec.suspend to false",
    Reason.DUPLICATE_ID: "choose another spec.id; an older Model holds this one",
    Reason.IMAGE_PULL: "check the runner image's name and the node's way to it",
}
"""What a person can do about a reason; reasons that mend themselves are left out."""


@dataclass(frozen=True)
class Explanation:
    """All that is known of one model."""

    model: Model
    waiting: int
    runners: tuple[Runner, ...]
    asked: Forecast | None = None
    """What would come of asking for it now; ``None``: the planner was not run."""
    unplanned: str = ""
    """Why it was not."""


@click.command()
@click.argument("model")
@snapshot_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def explain(*, model: str, snapshot: str | None, target: Target, as_json: bool) -> None:
    """Say why MODEL is not loaded, and what it would take.

    Its conditions and last refusal, and what the planner would do if it were asked for now: where it
    would go, who would have to make room, or what each place lacks.
    """
    namespace = target.in_namespace
    if snapshot:
        scene = dumped_scene(snapshot, (), Reading())
        found = forecast(scene.state, [key_of(model, namespace, scene.state)])
        lines, wire = asked_lines(found), forecast_wire(found)
    else:
        attempted = f"explaining model {namespace}/{model}"
        told = run(_gather(model, namespace, target), attempted=attempted)
        lines, wire = explanation_lines(told, time.time()), explanation_wire(told)
    if as_json:
        show_json(wire)
    else:
        click.echo("\n".join(lines))


async def _gather(name: str, namespace: str, target: Target) -> Explanation:
    async with connected(target) as kube:
        model = await get(kube, Model, name, namespace)
        demands = [d for d in await list_all(kube, Demand, namespace) if d.metadata.name == name]
        runners = await list_all(kube, Runner, namespace)
    asked, unplanned = await _ask(model.key, target)
    return Explanation(
        model=model,
        waiting=sum(entry.requests for demand in demands for entry in demand.status.waiting),
        runners=tuple(r for r in runners if r.spec.model_ref.name == name),
        asked=asked,
        unplanned=unplanned,
    )


async def _ask(key: str, target: Target) -> tuple[Forecast | None, str]:
    """The planner's answer; who may not list nodes and pods is told so, and gets the rest."""
    try:
        scene = await live_scene(target, subjects=frozenset({key}))
    except ApiError as err:
        if err.status != 403:
            raise
        return None, f"the planner was not run: {err.message}"
    if key not in scene.models or scene.models[key].metadata.deletion_timestamp:
        return None, "the planner was not run: the model is being deleted"
    return forecast(scene.state, [key]), ""


def explanation_wire(found: Explanation) -> dict[str, Any]:
    """What ``--json`` says."""
    return as_wire(found.model) | {
        "conditions": [condition.wire() for condition in found.model.status.conditions],
        "waiting": found.waiting,
        "restarts": found.model.status.restarts,
        "nextRetry": found.model.status.next_retry,
        "ifAsked": forecast_wire(found.asked) if found.asked is not None else None,
        "todo": list(todo(found)),
    }


def explanation_lines(found: Explanation, now: float) -> list[str]:
    """What is printed for a person."""
    lines = [_headline(found.model)]
    lines += [f"  {line}" for line in _facts(found, now)]
    refusal = found.model.status.last_refusal
    if refusal is not None and state_of(found.model) != State.UP:
        lines += [
            "",
            f"Last refusal ({show_age(refusal.at, now)} ago): {refusal.message or refusal.reason}",
        ]
        lines += [f"  {line}" for line in _places(refusal)]
    if found.runners:
        lines += ["", "Runners"]
        lines += [f"  {line}" for line in _runner_lines(found.runners)]
    if found.asked is not None and state_of(found.model) != State.UP:
        lines += ["", "If it were asked for now", *(f"  {x}" for x in asked_lines(found.asked))]
    lines += ["", f"Note: {found.unplanned}"] if found.unplanned else []
    advice = list(todo(found))
    if advice:
        lines += ["", "What to do", *(f"  - {line}" for line in advice)]
    return lines


def _headline(model: Model) -> str:
    condition = ready(model)
    if condition is None:
        return f"{model.key} has not been seen by the controller yet (`berth doctor`)"
    return f"{model.key} is {condition.reason}: {condition.message or 'nothing more is known'}"


def _facts(found: Explanation, now: float) -> Iterator[str]:
    status = found.model.status
    if status.observed_generation not in (None, found.model.metadata.generation):
        yield "the controller has not seen the last change of its spec yet"
    if status.needs is not None:
        yield f"needs {status.needs.text}"
    for condition in status.conditions:
        if condition.status != "True" and condition.type != "Ready":
            yield f"{condition.type} is {condition.status} ({condition.reason}): {condition.message}"
    if found.waiting:
        yield f"{found.waiting} requests wait for it"
    if status.restarts:
        again = f", next try at {status.next_retry}" if status.next_retry else ""
        yield f"restarted {status.restarts} times{again}"
    if status.last_used:
        yield f"last used {show_age(status.last_used, now)} ago"


def _places(refusal: LastRefusal) -> list[str]:
    if not refusal.places:
        return []
    headers = ("reason", "places", "best example", "needs", "has", "of", "message")
    return table_lines(headers, [_place(place) for place in refusal.places])


def _place(place: PlaceRefusal) -> tuple[str, ...]:
    return (
        place.reason,
        str(place.count),
        f"{place.node} {place.device}".strip(),
        *(show_bytes(size) if size else "" for size in (place.need, place.have, place.capacity)),
        place.message,
    )


def _runner_lines(runners: tuple[Runner, ...]) -> list[str]:
    return table_lines(
        ("name", "state", "node", "message"),
        [(r.metadata.name, r.status.state, r.spec.node_name, _runner_message(r)) for r in runners],
    )


def _runner_message(runner: Runner) -> str:
    """The admission's refusal, else how its fetch stands, else how it last ended."""
    agent, status = runner.status.agent, runner.status
    if agent and agent.admission and agent.admission.state == "Refused":
        admission = agent.admission
        return f"{admission.reason}: needs {show_bytes(admission.need)}, has {show_bytes(admission.have)}"
    if agent and agent.fetch and agent.fetch.state != "Verified":
        fetch = agent.fetch
        return (
            fetch.message or f"{fetch.state} {show_bytes(fetch.done)} of {show_bytes(fetch.total)}"
        )
    return status.last_exit.message if status.last_exit else ""


def asked_lines(found: Forecast) -> list[str]:
    """What the planner would do, and what it would take where it refuses."""
    lines = forecast_lines(found)
    for outcome in found.outcomes:
        takes = list(take_lines(found.state, outcome))
        if takes:
            lines += ["", "What it would take", *(f"  {line}" for line in takes)]
    return lines


def todo(found: Explanation) -> Iterator[str]:
    """What a person can do, for the reasons that are told; each once."""
    model = found.model
    reasons = [c.reason for c in model.status.conditions if c.status != "True"]
    if state_of(model) != State.UP:
        refusal = model.status.last_refusal
        reasons += [refusal.reason, *(p.reason for p in refusal.places)] if refusal else []
        for outcome in found.asked.outcomes if found.asked is not None else ():
            said = outcome.refusal
            reasons += [said.reason] if said is not None else []
            reasons += [place.reason for place in said.places] if isinstance(said, Refuse) else []
    for reason in dict.fromkeys(reasons):
        if reason in TODO:
            yield TODO[reason]
