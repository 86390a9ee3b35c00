"""What does each node have, which policy governs it, and who has taken it?"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from berth.api.inventory import Device as InventoryDevice
from berth.api.inventory import NodeInventory
from berth.controller.holds import held_nodes
from berth.controller.memo import Memo
from berth.controller.sightings import Sightings
from berth.controller.store import Store
from berth.controller.views import NodeView, PodView
from berth.planner.state import Device, Node, Policy
from berth.policy import governing, policy_of
from berth.units import Bytes


@dataclass
class PodSums:
    """What the pods on one node ask for, Berth's runners apart."""

    requested: int = 0
    count: int = 0


@dataclass(frozen=True)
class AgentPods:
    """Which nodes' agents are known by a pod, and whether it is ready."""

    ready: Mapping[str, bool] = field(default_factory=dict)

    def fresh(self, node: str) -> bool:
        """An agent without a pod (it runs outside the cluster) is believed by its inventory."""
        return self.ready.get(node, True)


def sum_pods(pods: Iterable[PodView]) -> tuple[dict[str, PodSums], AgentPods]:
    """Requests of all foreign pods by node, and the agents' readiness."""
    sums: dict[str, PodSums] = defaultdict(PodSums)
    agents: dict[str, bool] = {}
    for pod in pods:
        if pod.agent and pod.node:
            agents[pod.node] = agents.get(pod.node, False) or (pod.ready and not pod.deleting)
        if pod.is_runner or pod.finished or not pod.node:
            continue
        sums[pod.node].requested += pod.requested
        sums[pod.node].count += 1
    return sums, AgentPods(agents)


def observe_nodes(
    store: Store, sightings: Sightings, memo: Memo[Node], *, host_reserve: Bytes, now: float
) -> tuple[Node, ...]:
    """Every node of the cluster; one without an inventory has no fresh agent and no devices."""
    sums, agents = sum_pods(store.pods)
    residencies = list(store.residencies)
    policies = {
        residency.metadata.name: policy_of(residency, host_reserve=host_reserve)
        for residency in residencies
    }
    default = policy_of(None, host_reserve=host_reserve)
    held = held_nodes(store.holds, store.nodes)
    nodes = []
    for view in store.nodes:
        inventory = store.inventories.get(view.name)
        residency = governing(residencies, view.labels)
        ready_since = sightings.since("node-ready", view.name, view.ready, now)
        place = _Place(
            view,
            inventory,
            policies[residency.metadata.name] if residency else default,
            sums=sums.get(view.name, PodSums()),
            held_by=held.get(view.name, ""),
            agent_fresh=inventory is not None and agents.fresh(view.name),
            not_ready_since=None if view.ready else ready_since,
        )
        nodes.append(memo.get(view.name, (place,), place.node))
    return tuple(sorted(nodes, key=lambda node: node.name))


@dataclass(frozen=True)
class _Place:
    """All that a node is made from."""

    view: NodeView
    inventory: NodeInventory | None
    policy: Policy
    sums: PodSums
    held_by: str
    agent_fresh: bool
    not_ready_since: float | None

    def node(self) -> Node:
        view, status = self.view, self.inventory.status if self.inventory else None
        policy = self.policy
        if status is not None and status.host.claims_used:
            policy = replace(policy, claims_used=Bytes(status.host.claims_used))
        return Node(
            name=view.name,
            capacity=Bytes(status.host.total if status else view.capacity),
            available=Bytes(status.host.available if status else 0),
            warm=Bytes(status.host.warm if status else 0),
            devices=tuple(_device(device) for device in status.devices) if status else (),
            labels=view.labels,
            taints=view.taints,
            ready=view.ready,
            not_ready_since=self.not_ready_since,
            schedulable=view.schedulable,
            agent_fresh=self.agent_fresh,
            disk_free=Bytes(status.disk_free if status else 0),
            files=frozenset(file.sha256 for file in status.files) if status else frozenset(),
            allocatable=view.allocatable,
            requested=Bytes(self.sums.requested),
            allocatable_pods=view.allocatable_pods,
            pods=self.sums.count,
            policy=policy,
            held_by=self.held_by,
            cpus=status.cpus if status else 0,
        )


def _device(device: InventoryDevice) -> Device:
    return Device(
        uuid=device.uuid,
        index=device.index,
        capacity=Bytes(device.memory),
        used=Bytes(device.used),
        unified=device.unified or device.memory == 0,
        name=device.name,
    )
