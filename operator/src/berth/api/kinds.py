"""Which kinds does Berth define, under which names, with which columns?"""

from dataclasses import dataclass, field

from berth.api.demand import Demand
from berth.api.hold import Hold
from berth.api.inventory import NodeInventory
from berth.api.meta import Resource
from berth.api.model import Model
from berth.api.profile import Profile
from berth.api.residency import Residency
from berth.api.runner import Runner


@dataclass(frozen=True)
class Column:
    """A column of ``kubectl get``; priority 1 shows with ``-o wide`` only."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


READY_REASON = '.status.conditions[?(@.type=="Ready")].reason'
READY_MESSAGE = '.status.conditions[?(@.type=="Ready")].message'
AGE = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True)
class KindInfo:
    """How a kind is registered with the API server."""

    cls: type[Resource]
    plural: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    scale: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.cls.__name__


MODEL = KindInfo(
    Model,
    "models",
    namespaced=True,
    short_names=("mdl",),
    columns=(
        Column("State", READY_REASON),
        Column("Runners", ".status.replicas", "integer"),
        Column("Node", ".status.runners[0].node"),
        Column("Device", ".status.runners[0].device"),
        Column("Profile", ".status.activeProfile"),
        Column("Id", ".status.id", priority=1),
        Column("Needs", ".status.needs.text", priority=1),
        Column("Last Used", ".status.lastUsed", "date"),
        Column("Message", READY_MESSAGE, priority=1),
        AGE,
    ),
    scale={
        "specReplicasPath": ".spec.minReplicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    },
)
PROFILE = KindInfo(
    Profile,
    "profiles",
    namespaced=True,
    columns=(
        Column("Runtime", ".spec.runtime"),
        Column("Context", ".spec.contextLength", "integer"),
        Column("Parallel", ".spec.parallel", "integer"),
        Column("Models", ".status.models", "integer"),
        AGE,
    ),
)
RESIDENCY = KindInfo(
    Residency,
    "residencies",
    namespaced=False,
    columns=(
        Column("Nodes", ".status.nodes", "integer"),
        Column("Runners", ".status.runners", "integer"),
        Column("Max", ".spec.maxRunners", "integer"),
        Column("CPU Runners", ".spec.cpuRunners"),
        AGE,
    ),
)
HOLD = KindInfo(
    Hold,
    "holds",
    namespaced=False,
    columns=(
        Column("Held", '.status.conditions[?(@.type=="Held")].status'),
        Column("Holder", ".spec.holder"),
        Column("Reason", ".spec.reason"),
        Column("Budget", ".spec.budget"),
        AGE,
    ),
)
RUNNER = KindInfo(
    Runner,
    "runners",
    namespaced=True,
    short_names=("rnr",),
    columns=(
        Column("Model", ".spec.modelRef.name"),
        Column("State", ".status.state"),
        Column("Node", ".spec.nodeName"),
        Column("Device", ".spec.claim.devices[*].index"),
        Column("Busy", ".status.agent.health.busy", "integer"),
        Column("Tokens", ".status.agent.health.tokens", "integer"),
        Column("Host Bytes", ".spec.claim.host", "integer", priority=1),
        Column("Device Bytes", ".spec.claim.devices[*].memory", priority=1),
        Column("Fetched", ".status.agent.fetch.done", "integer", priority=1),
        AGE,
    ),
)
DEMAND = KindInfo(
    Demand,
    "demands",
    namespaced=True,
    columns=(
        Column("Waiting", ".status.waiting[*].requests"),
        Column("Used", ".status.used", "date"),
        AGE,
    ),
)
INVENTORY = KindInfo(
    NodeInventory,
    "nodeinventories",
    namespaced=False,
    short_names=("inv",),
    columns=(
        Column("GPUs", ".status.devices[*].name"),
        Column("GPU Memory", ".status.devices[*].memory"),
        Column("Host", ".status.host.total", "integer"),
        Column("Available", ".status.host.available", "integer"),
        Column("Files", ".status.fileCount", "integer"),
        AGE,
    ),
)

KINDS = (MODEL, PROFILE, RESIDENCY, HOLD, RUNNER, DEMAND, INVENTORY)
BY_CLASS = {info.cls: info for info in KINDS}
