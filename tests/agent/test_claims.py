"""What is set aside for a program outside Berth counts once, whether or not it is used yet."""

from pathlib import Path
from typing import Any

import pytest

from agent.places import NODE
from agent.world import World
from berth.agent.claims import OtherPod, claims_in_use, read_other
from berth.agent.host import Process
from berth.api.residency import ClaimPolicy
from berth.kube.refs import PODS
from berth.units import Bytes, GiB
from fakes.node import FakeNode


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


CLAIM = ClaimPolicy(name="narrator", memory="8Gi", selector={"app": "narrator"})
POD = OtherPod("uid-n", "n1", {"app": "narrator", "tier": "x"})


def _node(*, pod: int = 0, process: int = 0) -> FakeNode:
    node = FakeNode()
    if pod:
        node.hold("uid-n", host=pod)
    if process:
        node.others = [Process(7, "python", "python narrator.py", held=Bytes(process))]
    return node


@pytest.mark.parametrize(
    ("node", "want"),
    [
        pytest.param(_node(), 0, id="nothing runs"),
        pytest.param(_node(pod=3 * GiB), 3 * GiB, id="a pod that the selector selects"),
        pytest.param(_node(process=2 * GiB), 2 * GiB, id="a process of its name"),
        pytest.param(_node(pod=3 * GiB, process=2 * GiB), 5 * GiB, id="both"),
        pytest.param(_node(pod=20 * GiB), 8 * GiB, id="no more than is set aside"),
    ],
)
def test_what_a_claims_own_programs_hold(node: FakeNode, want: int) -> None:
    assert claims_in_use([CLAIM], node, [POD]) == want


def test_of_others_nothing_counts() -> None:
    node = _node(pod=3 * GiB, process=2 * GiB)
    other = ClaimPolicy(name="reader", memory="8Gi", selector={"app": "reader"})
    bare = ClaimPolicy(name="reader", memory="8Gi")
    assert claims_in_use([other, bare], node, [POD]) == 0
    assert claims_in_use([], node, [POD]) == 0


def pod(phase: str = "Running", node: str = "n1") -> dict[str, Any]:
    """A pod that is not Berth's."""
    meta = {"name": "n", "namespace": "apps", "uid": "uid-n", "labels": {"app": "narrator"}}
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase}}


def test_pods_that_have_ended_or_have_no_node_are_left_out() -> None:
    assert read_other(pod()) == OtherPod("uid-n", "n1", {"app": "narrator"})
    assert read_other(pod("Succeeded")) is None
    assert read_other(pod(node="")) is None


async def test_a_load_beside_a_program_that_uses_what_is_set_aside_for_it(world: World) -> None:
    """40 of 64 GiB are set aside and used, 1 is kept free, 4 are strangers': 18 are left. Counted twice,
    nothing would be."""
    world.node.memory_total = 64 * GiB
    world.node.hold("uid-n", host=40 * GiB)
    claim = {"name": "narrator", "memory": "40Gi", "selector": {"app": "narrator"}}
    world.policy(claims=[claim])
    world.kube.put(PODS, pod(node=NODE))
    world.runner(claim={"host": 18 * GiB})
    async with world.agent():
        await world.until(lambda: world.status().admission, "a decision")
        assert world.status().admission.state == "Admitted"
        await world.until(lambda: world.inventory().host.claims_used == 40 * GiB, "it is told")
