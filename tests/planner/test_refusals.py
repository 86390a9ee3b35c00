"""What is told where a wanted model goes nowhere now?"""

from dataclasses import replace

import pytest

from berth.planner.actions import Refuse
from berth.planner.plan import make_plan
from berth.planner.state import Stage, State
from berth.reasons import Reason
from builders import (
    NOW,
    cluster,
    cpu_node,
    device,
    gib,
    model,
    need,
    node,
    policy,
    runner,
    waiting,
)
from planner.told import only, refusals

FILES = (("sha-a", gib(3)),)

REFUSED = [
    pytest.param(
        cluster(node(), waiting("a", 100)),
        (Reason.NEVER_FITS, True),
        "model a needs 100 GiB; the largest berth is gpu-1 cuda:0 with 24 GiB even when empty",
        id="can never fit: final, with both numbers (C8)",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20, pinned=True), runner("b", 20)),
        (Reason.ONLY_PINNED, True),
        "model a needs 20 GiB; the largest free berth is gpu-1 cuda:0 with 4 GiB, the rest is held by pinned models",
        id="only pinned models in the way: final (C17)",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20), runner("b", 20, busy=1)),
        (Reason.BUSY, False),
        "model a needs 20 GiB; the largest free berth is gpu-1 cuda:0 with 4 GiB, the rest is held by runners in use",
        id="fits once others end: a wait",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20), runner("b", 20, stage=Stage.STARTING)),
        (Reason.LOAD_IN_PROGRESS, False),
        "model a needs 20 GiB; the largest free berth is gpu-1 cuda:0 with 4 GiB, the rest is held by loads under way",
        id="a load is under way: a wait",
    ),
    pytest.param(
        cluster(node(devices=(device(used=20.0),)), waiting(gpu=10)),
        (Reason.MEMORY, False),
        "model a needs 10 GiB; the largest free berth is gpu-1 cuda:0 with 4 GiB, the rest is used by programs outside Berth",
        id="strangers are in the way: a wait",
    ),
    pytest.param(
        cluster(node(), waiting(needs=(need(gpus=(10, 10)),))),
        (Reason.NO_DEVICE, True),
        "model a needs 20 GiB; gpu-1: 2 devices wanted, 1 here",
        id="fewer devices than the model takes: final",
    ),
    pytest.param(
        cluster(node(labels={"zone": "x"}), waiting(node_selector={"zone": "y"})),
        (Reason.NO_NODE, True),
        "model a needs 10 GiB; gpu-1: label zone is not y",
        id="no node with the label: final",
    ),
    pytest.param(
        cluster(
            node(policy=policy(trust=frozenset({"PreExec"}))),
            waiting(runs_code=frozenset({"Command", "PreExec"})),
        ),
        (Reason.UNTRUSTED_CODE, True),
        "model a needs 10 GiB; gpu-1: its profile has Command, which residency group does not trust",
        id="a profile's own code where no policy trusts it: final (R16)",
    ),
    pytest.param(
        cluster(node(devices=(replace(device(), name="NVIDIA L4"),)), waiting(device_names=("H100",))),
        (Reason.NO_DEVICE, True),
        "model a needs 10 GiB; gpu-1: no device H100",
        id="a runtime that needs another GPU: final (R4)",
    ),
    pytest.param(
        cluster(node(), waiting(device="cuda:3")),
        (Reason.NO_DEVICE, True),
        "model a needs 10 GiB; gpu-1: no device cuda:3",
        id="no node offers the device: final (D4)",
    ),
    pytest.param(
        cluster(cpu_node(), waiting(device="cuda")),
        (Reason.NO_DEVICE, True),
        "model a needs 10 GiB; cpu-1: no device cuda",
        id="no GPU at all: final (D4)",
    ),
    pytest.param(
        cluster(node(), waiting(gpu=None, device="cpu")),
        (Reason.CPU_NOT_ALLOWED, True),
        "model a needs 1 GiB; gpu-1: no CPU runners here",
        id="cpu where CPU runners are not allowed: final (D4)",
    ),
    pytest.param(
        cluster(node(held_by="training"), waiting()),
        (Reason.HELD, False),
        "model a needs 10 GiB; gpu-1: held by training",
        id="a hold: a wait",
    ),
    pytest.param(
        cluster(node(ready=False, not_ready_since=NOW - 5), waiting()),
        (Reason.NODE_NOT_READY, False),
        "model a needs 10 GiB; gpu-1: the node is not ready",
        id="the only node is not ready: a wait that names it (H20)",
    ),
    pytest.param(
        cluster(node(agent_fresh=False), waiting()),
        (Reason.NO_AGENT, False),
        "model a needs 10 GiB; gpu-1: its agent has not reported lately",
        id="a silent agent: a wait",
    ),
    pytest.param(
        cluster(node(), waiting("a", 30), node("gpu-2", gpu=51.2, held_by="training")),
        (Reason.HELD, False),
        "model a needs 30 GiB; gpu-2: held by training",
        id="only a held node is large enough: a wait, not a final no",
    ),
    pytest.param(
        cluster(node(disk_free=gib(1)), waiting(files=FILES)),
        (Reason.DISK_FULL, False),
        "model a needs 3 GiB; the largest free berth is gpu-1 cuda:0 with 1 GiB",
        id="no disk for the files: told so",
    ),
    pytest.param(
        cluster(
            node(policy=policy(max_runners=1)), waiting("a", 2), model("b", 2), runner("b", 2, busy=1)
        ),
        (Reason.CAP, False),
        "model a needs 2 GiB; gpu-1 cuda:0: 1 runners are loaded, no more than 1 may be",
        id="the cap, and nobody idle: a wait",
    ),
    pytest.param(
        cluster(waiting()),
        (Reason.NO_NODE, True),
        "model a needs 10 GiB; no node may hold it",
        id="no node at all: final",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("state", "want", "message"), REFUSED)
def test_a_refusal_has_its_numbers(state: State, want: tuple[Reason, bool], message: str) -> None:
    plan = make_plan(state)
    assert refusals(plan) == [want]
    told = only(plan, Refuse)
    assert isinstance(told, Refuse)
    assert told.message == message


def test_a_refusal_lists_at_most_sixteen_places() -> None:
    nodes = [node(f"gpu-{i}", gpu=8 + i) for i in range(40)]
    told = only(make_plan(cluster(*nodes, waiting("a", 100))), Refuse)
    assert isinstance(told, Refuse)
    assert len(told.places) == 16
    assert told.places[0].have == max(place.have for place in told.places)
