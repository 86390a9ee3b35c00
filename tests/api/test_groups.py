"""Does a model that needs two nodes run on both or on none, and come back when either half dies?"""

import asyncio
from typing import Any

import pytest

from api.bay import GIB, Bay
from fakes.repository import sparse_repository

GPUS = "1x24Gi"
TWO = {"pipeline": 2, "nodes": 2}


def spread(
    bay: Bay, name: str = "g", *, weights: int = 30 * GIB, parallelism: Any = None, **spec: Any
) -> str:
    """A model of vLLM that takes two nodes unless told otherwise; its engines are played."""
    sparse_repository(bay.stack.hub_root / bay.name / name, weights=weights)
    overrides = {
        "runtime": "vllm",
        "parallelism": parallelism or TWO,
        "contextLength": 2048,
        "images": {"cuda": "fake/vllm"},
        "env": [{"name": "FAKE_LOAD_SECONDS", "value": "1"}],
    }
    bay.apply_model(
        name,
        {
            "source": {"huggingFace": {"repo": f"{bay.name}/{name}"}},
            "nodeSelector": {"bay": bay.name},
            "overrides": overrides,
            **spec,
        },
    )
    return f"{bay.name}-{name}"


def members(bay: Bay) -> list[tuple[str, int, str]]:
    """Node, rank and state of every Runner, by rank."""
    found = [
        (
            runner["spec"]["nodeName"],
            runner["spec"].get("group", {}).get("rank", -1),
            runner.get("status", {}).get("state", ""),
        )
        for runner in bay.runners()
    ]
    return sorted(found, key=lambda one: one[1])


def pods(bay: Bay) -> dict[str, str]:
    """Uid of each pod by its name."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in bay.pods()}


async def up(bay: Bay, model: str) -> None:
    await bay.until("both halves are up", lambda: _both_up(bay) and bay.state(model) == "Up", 60)


def _both_up(bay: Bay) -> bool:
    return [(rank, state) for _, rank, state in members(bay)] == [(0, "Up"), (1, "Up")]


async def test_a_model_over_two_nodes_meets_at_its_head_and_answers(bay: Bay) -> None:
    nodes = [bay.node("a", gpus=GPUS), bay.node("b", gpus=GPUS)]
    model = spread(bay)
    assert (await bay.ask(model)).status_code == 200
    await up(bay, model)
    assert sorted(node for node, _, _ in members(bay)) == sorted(nodes)
    runners = {r["spec"]["group"]["rank"]: r for r in bay.runners()}
    assert runners[0]["status"]["address"]
    assert "address" not in runners[1]["status"]
    assert bay.get(model)["status"]["replicas"] == 1
    names = sorted(pods(bay))
    assert names == [runners[0]["metadata"]["name"], f"{runners[0]['metadata']['name']}-r1"]
    # Each half holds its own claim on its own node.
    for runner in runners.values():
        assert len(runner["spec"]["claim"]["devices"]) == 1


async def test_one_node_is_not_enough_and_says_so(bay: Bay) -> None:
    bay.node("a", gpus=GPUS)
    model = spread(bay)
    answer = await bay.ask(model)
    assert answer.status_code == 503
    assert "needs 2 nodes" in answer.json()["error"]["message"]
    assert bay.created_pods() == []


async def test_no_pod_before_every_member_is_admitted(bay: Bay) -> None:
    bay.node("a", gpus=GPUS)
    second = bay.node("b", gpus=GPUS)
    # Somebody takes the second node's memory behind Berth's back, after the inventory was read.
    bay.stack.fault(f"agent/{second}?run=false")
    model = spread(bay)
    answer = asyncio.create_task(bay.ask(model))
    await asyncio.sleep(4)
    assert bay.created_pods() == []
    bay.stack.fault(f"agent/{second}?run=true")
    assert (await answer).status_code == 200
    assert len(bay.created_pods()) == 2


@pytest.mark.parametrize("rank", [0, 1], ids=["the head", "the other one"])
async def test_a_member_killed_restarts_the_group_as_one(bay: Bay, rank: int) -> None:
    bay.node("a", gpus=GPUS)
    bay.node("b", gpus=GPUS)
    model = spread(bay, minReplicas=1)
    await up(bay, model)
    before = pods(bay)
    name = sorted(before)[rank]
    bay.stack.fault(f"kill/{bay.name}/{name}")
    await bay.until(
        "both halves are new", lambda: not set(pods(bay).values()) & set(before.values()), 60
    )
    await up(bay, model)
    assert len(bay.runners()) == 2
    assert (await bay.ask(model)).status_code == 200
    status = bay.get(model)["status"]
    assert status["restarts"] == 1


async def test_a_lost_node_moves_the_group(bay: Bay) -> None:
    nodes = [bay.node(name, gpus=GPUS) for name in "abc"]
    model = spread(bay, minReplicas=1)
    await up(bay, model)
    gone = members(bay)[1][0]
    bay.stack.plane.kubectl("delete", "node", gone, "--wait=false")
    bay.nodes.remove(gone)
    await bay.until(
        "it runs on the other two",
        lambda: _both_up(bay) and gone not in {node for node, _, _ in members(bay)},
        110,
    )
    assert {node for node, _, _ in members(bay)} == set(nodes) - {gone}
    assert (await bay.ask(model)).status_code == 200


async def test_an_unload_ends_both_halves_and_frees_both_nodes(bay: Bay) -> None:
    bay.node("a", gpus=GPUS)
    bay.node("b", gpus=GPUS)
    model = spread(bay)
    assert (await bay.ask(model)).status_code == 200
    other = spread(bay, "h")
    assert (await bay.ask(other)).status_code == 200
    await bay.until("the first is gone", lambda: len(bay.pods()) == 2, 60)
    assert bay.pods_of(model) == []
