"""What the scheduler counts for a pod, and what is kept of it."""

from typing import Any

import pytest

from berth.controller.views import node_view, pod_view, requested_memory
from controller.objects import GIB, MIB, node, pod


def _wants(memory: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"memory": memory}}, **more}


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"containers": [_wants("1Gi"), _wants("512Mi")]}, 1536 * MIB, id="the sum"),
        pytest.param({"containers": [{}]}, 0, id="no request is no request"),
        pytest.param(
            {"containers": [_wants("1Gi")], "initContainers": [_wants("3Gi")]},
            3 * GIB,
            id="an init container that wants more than all the rest",
        ),
        pytest.param(
            {
                "containers": [_wants("1Gi")],
                "initContainers": [_wants("1Gi", restartPolicy="Always"), _wants("3Gi")],
            },
            4 * GIB,
            id="a sidecar runs beside the init containers after it",
        ),
        pytest.param(
            {"containers": [_wants("1Gi")], "overhead": {"memory": "100Mi"}},
            1124 * MIB,
            id="with the runtime's overhead",
        ),
        pytest.param(
            {"containers": [_wants("1Gi")], "resources": {"requests": {"memory": "2Gi"}}},
            2 * GIB,
            id="a request of the whole pod",
        ),
    ],
)
def test_requests(spec: dict[str, Any], want: int) -> None:
    assert requested_memory(spec) == want


def test_a_finished_pod_requests_nothing() -> None:
    assert pod_view(pod(phase="Failed")).requested == 0


def test_a_runner_pod_that_is_not_scheduled_yet_is_on_the_node_it_is_bound_to() -> None:
    raw = pod()
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}]}
    raw["spec"] = {
        "containers": [],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
            }
        },
    }
    view = pod_view(raw)
    assert (view.node, view.scheduled) == ("gpu-7", False)


def test_of_a_foreign_pod_nothing_is_kept_but_its_requests() -> None:
    view = pod_view(pod("other", of_runner=False))
    assert not view.is_runner
    assert view.requested == GIB
    assert view.ip == ""


def test_a_broken_claim_is_no_claim() -> None:
    raw = pod()
    raw["metadata"]["annotations"]["berth.dev/claim"] = "{"
    assert pod_view(raw).claim is None


def test_a_node() -> None:
    view = node_view(node(taints=[{"key": "k", "effect": "NoExecute"}], unschedulable=True))
    assert (view.allocatable, view.ready, view.schedulable) == (64 * GIB, True, False)
    assert [(t.key, t.effect) for t in view.taints] == [("k", "NoExecute")]
