"""Which policy governs a node, who holds it, and what do the pods on it ask for?"""

from typing import Any

from berth.controller.memo import Memo
from berth.controller.observe_nodes import observe_nodes
from berth.controller.sightings import Sightings
from berth.planner.state import Node
from berth.units import Bytes
from controller.objects import GIB, NOW, hold, inventory, meta, node, pod, residency, store


def _see(sightings: Sightings | None = None, now: float = NOW, **kinds: Any) -> Node:
    kinds.setdefault("nodes", [node()])
    kinds.setdefault("inventories", [inventory()])
    found = observe_nodes(
        store(**kinds), sightings or Sightings(), Memo(), host_reserve=Bytes(2 * GIB), now=now
    )
    return found[0]


def test_the_residency_of_highest_priority_that_selects_the_node_governs_it() -> None:
    seen = _see(
        nodes=[node(labels={"gpu": "yes"})],
        residencies=[
            residency("all"),
            residency("gpus", nodeSelector={"gpu": "yes"}, priority=10, maxRunners=3),
            residency("others", nodeSelector={"gpu": "no"}, priority=99),
        ],
    )
    assert (seen.policy.name, seen.policy.max_runners) == ("gpus", 3)


def test_without_a_residency_the_clusters_settings_govern() -> None:
    assert _see().policy.host_reserve == 2 * GIB


def test_the_eldest_hold_has_the_node_and_one_that_is_over_has_nothing() -> None:
    released = [
        {"type": "Released", "status": "True", "reason": "Released", "lastTransitionTime": "x"}
    ]
    seen = _see(
        holds=[
            hold("a-over", nodes=["a"], conditions=released),
            hold("b-first", nodes=["a"]),
            hold("c-second", nodeSelector={}, nodes=["a"]),
        ]
    )
    assert seen.held_by == "b-first"


def test_foreign_pods_count_and_runners_and_ended_ones_do_not() -> None:
    seen = _see(
        pods=[
            pod("mine"),
            pod("theirs", of_runner=False, memory="3Gi"),
            pod("done", of_runner=False, phase="Succeeded"),
            pod("elsewhere", of_runner=False, node="b"),
        ]
    )
    assert (seen.requested, seen.pods) == (3 * GIB, 1)


def _agent(*, ready: bool) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "agent", "app.kubernetes.io/name": "berth"}
    return pod("agent", of_runner=False, ready=ready) | {
        "metadata": meta("agent", "berth-system", labels=labels)
    }


def test_an_agent_is_fresh_with_an_inventory_and_a_ready_pod_where_it_has_one() -> None:
    assert _see(pods=[_agent(ready=True)]).agent_fresh
    assert not _see(pods=[_agent(ready=False)]).agent_fresh
    assert _see().agent_fresh
    assert not _see(inventories=[]).agent_fresh


def test_a_node_without_an_inventory_is_known_but_nothing_is_free_there() -> None:
    seen = _see(inventories=[])
    assert (seen.capacity, seen.available) == (64 * GIB, 0)


def test_not_ready_is_timed_here() -> None:
    sightings = Sightings()
    assert _see(sightings, NOW, nodes=[node(ready=False)]).not_ready_since == NOW
    assert _see(sightings, NOW + 30, nodes=[node(ready=False)]).not_ready_since == NOW
    assert _see(sightings, NOW + 40).not_ready_since is None


def test_a_device_without_figures_is_unified() -> None:
    seen = _see(inventories=[inventory(devices=[{"uuid": "GPU-1", "memory": 0}])])
    assert seen.devices[0].unified
