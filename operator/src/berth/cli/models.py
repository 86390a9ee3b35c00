"""Which models are declared, in which state, where, and what do they need?"""

import time
from typing import Any

import click

from berth.api.meta import Condition
from berth.api.model import Model
from berth.cli.cluster import Target, cluster_options, connected, list_all, run
from berth.cli.show import show_age, show_json, show_table

HEADERS = (
    "namespace",
    "name",
    "state",
    "runners",
    "node",
    "device",
    "needs",
    "last used",
    "message",
)


@click.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="Models of every namespace.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def models(*, target: Target, all_namespaces: bool, as_json: bool) -> None:
    """List every model with its state, whether loaded or not."""
    found = run(_list(target, all_namespaces=all_namespaces), attempted="listing the models")
    if as_json:
        show_json([as_wire(model) for model in found])
    elif not found:
        where = "the cluster" if all_namespaces else f"namespace {target.in_namespace}"
        click.echo(f"There is no Model in {where}.", err=True)
    else:
        show_table(HEADERS, [_row(model, time.time()) for model in found])


async def _list(target: Target, *, all_namespaces: bool) -> list[Model]:
    async with connected(target) as kube:
        found = await list_all(kube, Model, "" if all_namespaces else target.in_namespace)
    return sorted(found, key=lambda model: model.key)


def ready(model: Model) -> Condition | None:
    """The condition whose reason is the state."""
    return next((c for c in model.status.conditions if c.type == "Ready"), None)


def state_of(model: Model) -> str:
    """The STATE column; empty before the controller has seen the model."""
    condition = ready(model)
    return condition.reason if condition else ""


def as_wire(model: Model) -> dict[str, Any]:
    """What ``--json`` says of a model."""
    condition, status = ready(model), model.status
    return {
        "namespace": model.metadata.namespace,
        "name": model.metadata.name,
        "id": model.served_id,
        "state": state_of(model),
        "message": condition.message if condition else "",
        "needs": status.needs.wire() if status.needs else None,
        "profile": status.active_profile,
        "runners": [runner.wire() for runner in status.runners],
        "lastUsed": status.last_used,
        "lastRefusal": status.last_refusal.wire() if status.last_refusal else None,
    }


def _row(model: Model, now: float) -> tuple[str, ...]:
    status, condition = model.status, ready(model)
    first = status.runners[0] if status.runners else None
    return (
        model.metadata.namespace,
        model.metadata.name,
        state_of(model),
        str(status.replicas),
        first.node if first else "",
        first.device if first else "",
        status.needs.text if status.needs else "",
        show_age(status.last_used, now),
        condition.message if condition else "",
    )
