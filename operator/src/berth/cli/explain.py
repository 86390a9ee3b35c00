"""Why is a model not loaded, and what would it take? What the objects say, in one place."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from berth.api.demand import Demand
from berth.api.model import LastRefusal, Model, PlaceRefusal
from berth.api.runner import Runner
from berth.cli.cluster import Target, cluster_options, connected, get, list_all, run
from berth.cli.models import as_wire, ready, state_of
from berth.cli.show import show_age, show_json, table_lines
from berth.reasons import Reason, State
from berth.units import show_bytes

TODO: Mapping[str, str] = {
    Reason.NEVER_FITS: "use a smaller model, quantisation or context, or a node with more memory",
    Reason.ONLY_PINNED: "unload or unpin a model that is in the way (residency: Pinned)",
    Reason.NO_NODE: "compare the Model's nodeSelector and tolerations with the nodes",
    Reason.NO_DEVICE: "compare the Model's device with `kubectl get nodeinventories`",
    Reason.CPU_NOT_ALLOWED: "allow CPU runners in the Residency (cpuRunners: Always), or add a GPU",
    Reason.UNTRUSTED_PATH: "list the path in hostPaths of the Residency of those nodes",
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


@click.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def explain(*, model: str, target: Target, as_json: bool) -> None:
    """Say why MODEL is not loaded: its conditions, and the last refusal with its numbers."""
    namespace = target.in_namespace
    found = run(
        _gather(model, namespace, target), attempted=f"explaining model {namespace}/{model}"
    )
    if as_json:
        show_json(explanation_wire(found))
    else:
        click.echo("\n".join(explanation_lines(found, time.time())))


async def _gather(name: str, namespace: str, target: Target) -> Explanation:
    async with connected(target) as kube:
        model = await get(kube, Model, name, namespace)
        demands = [d for d in await list_all(kube, Demand, namespace) if d.metadata.name == name]
        runners = await list_all(kube, Runner, namespace)
    return Explanation(
        model=model,
        waiting=sum(entry.requests for demand in demands for entry in demand.status.waiting),
        runners=tuple(r for r in runners if r.spec.model_ref.name == name),
    )


def explanation_wire(found: Explanation) -> dict[str, Any]:
    """What ``--json`` says."""
    return as_wire(found.model) | {
        "conditions": [condition.wire() for condition in found.model.status.conditions],
        "waiting": found.waiting,
        "restarts": found.model.status.restarts,
        "nextRetry": found.model.status.next_retry,
        "todo": list(todo(found.model)),
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
    advice = list(todo(found.model))
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


def todo(model: Model) -> Iterator[str]:
    """What a person can do, for the reasons that are told; each once."""
    reasons = [c.reason for c in model.status.conditions if c.status != "True"]
    if model.status.last_refusal is not None and state_of(model) != State.UP:
        refusal = model.status.last_refusal
        reasons += [refusal.reason, *(place.reason for place in refusal.places)]
    for reason in dict.fromkeys(reasons):
        if reason in TODO:
            yield TODO[reason]
