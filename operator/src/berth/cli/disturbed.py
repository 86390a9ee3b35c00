"""Who is disturbed when nodes are taken? The models that are loaded there, with what they have in hand."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import click

from berth.api.demand import Demand
from berth.api.meta import timestamp
from berth.api.runner import Runner
from berth.cli.cluster import list_all
from berth.cli.errors import CommandError
from berth.kube.client import Kube, Object
from berth.kube.refs import NODES

_LOOK_S = 2.0
Say = Callable[[str], None]


def say_error(text: str) -> None:
    click.echo(text, err=True)


@dataclass(frozen=True)
class Wanted:
    """What was asked for on the command line."""

    name: str
    nodes: tuple[str, ...] = ()
    selector: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    budget: str = "30m"
    holder: str = ""
    command: tuple[str, ...] = ()
    when_idle: bool = False

    @property
    def where(self) -> str:
        labels = [f"{key}={value}" for key, value in self.selector.items()]
        return ", ".join((*self.nodes, *labels))

    def spec(self, *, released: bool) -> Object:
        """The whole of it each time: what an apply leaves out, it gives up."""
        spec: Object = {"reason": self.reason, "budget": self.budget, "holder": self.holder}
        if self.nodes:
            spec["nodes"] = list(self.nodes)
        if self.selector:
            spec["nodeSelector"] = self.selector
        if self.command:
            spec["renewTime"] = timestamp(time.time())
        return spec | ({"released": True} if released else {})


@dataclass(frozen=True)
class Disturbed:
    """A model with a runner on the nodes. ``busy``: requests in hand or waiting."""

    model: str
    node: str
    busy: int

    @property
    def text(self) -> str:
        use = f"{self.busy} requests in hand or waiting" if self.busy else "idle"
        return f"model {self.model} is loaded on {self.node}: {use}"


async def name_disturbed(kube: Kube, wanted: Wanted, say: Say) -> None:
    """Say which models are loaded on the nodes; with ``when_idle``, wait until none is in use."""
    nodes = await _nodes(kube, wanted)
    last: list[Disturbed] = []
    while True:
        found = await _disturbed(kube, nodes)
        for one in found:
            if one not in last:
                say(one.text)
        if not wanted.when_idle or not any(one.busy for one in found):
            return
        last = found
        await asyncio.sleep(_LOOK_S)


async def _nodes(kube: Kube, wanted: Wanted) -> set[str]:
    """Names of the nodes that are meant. Raises CommandError where there is none."""
    found, _ = await kube.list_all(NODES)
    by_name = {obj["metadata"]["name"]: obj["metadata"].get("labels") or {} for obj in found}
    unknown = [name for name in wanted.nodes if name not in by_name]
    pairs = wanted.selector.items()
    chosen = {name for name, labels in by_name.items() if pairs and pairs <= labels.items()}
    if unknown or not (chosen or wanted.nodes):
        missing = ", ".join(unknown) or "none has these labels"
        raise CommandError(
            f"holding {wanted.where}",
            wrong=f"there is no such node: {missing}",
            todo="see `kubectl get nodes --show-labels`",
        )
    return chosen | set(wanted.nodes)


async def _disturbed(kube: Kube, nodes: set[str]) -> list[Disturbed]:
    waiting = {
        demand.key: sum(entry.requests for entry in demand.status.waiting)
        for demand in await list_all(kube, Demand)
    }
    found = []
    for runner in await list_all(kube, Runner):
        if runner.spec.node_name not in nodes:
            continue
        health = runner.status.agent.health if runner.status.agent else None
        busy = (health.busy if health else 0) + waiting.get(runner.model_key, 0)
        found.append(Disturbed(runner.model_key, runner.spec.node_name, busy))
    return sorted(found, key=lambda one: (one.model, one.node))
