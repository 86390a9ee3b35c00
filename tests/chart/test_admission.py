"""Does a real API server let a runner's pod in, with the chart's priority class and under Pod Security?"""

import json
import subprocess

import pytest

from berth.api.runner import Runner
from berth.manifests.pod import PodSettings, runner_pod

pytestmark = pytest.mark.api
BY_DRIVER = PodSettings()


def pod(namespace, settings=BY_DRIVER, **spec):
    """The pod of a Runner whose files lie in the node's store."""
    runner = Runner.model_validate(
        {
            "metadata": {"name": "m-0", "namespace": namespace, "uid": "u"},
            "spec": {
                "modelRef": {"name": "m", "uid": "u"},
                "nodeName": "a",
                "image": "berth/runner",
                "command": ["llama-server"],
                "claim": {"host": 1 << 30},
                **spec,
            },
        }
    )
    return json.dumps(runner_pod(runner, settings))


@pytest.fixture(scope="module")
def restricted(plane):
    """A namespace that enforces ``restricted``."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": label}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": "strict"},
        },
    )
    return "strict"


def dry_run(plane, text):
    return plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=text)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="from the node's store"),
        pytest.param({"mount": {"persistentVolumeClaim": "weights"}}, id="from a claim"),
    ],
)
def test_a_runner_passes_restricted(plane, restricted, spec):
    kept = json.loads(dry_run(plane, pod(restricted, **spec)))
    assert (kept["spec"]["priority"], kept["spec"]["preemptionPolicy"]) == (0, "Never")


def test_a_cluster_set_to_host_paths_is_refused_for_these_alone(plane, restricted):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        dry_run(plane, pod(restricted, PodSettings(store_volume="hostPath")))
    assert caught.value.stderr.count("violates PodSecurity") == 1
    assert 'restricted volume types (volume "models" uses restricted volume type "hostPath")' in (
        caught.value.stderr
    )


def test_a_class_that_preempts_is_refused(plane, restricted):
    """Room is made by the planner; a pod that preempts would stop what the ledger counts on."""
    plane.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "pushy"},
            "value": 1000,
        }
    )
    with pytest.raises(subprocess.CalledProcessError) as caught:
        dry_run(plane, pod(restricted, podTemplate={"priorityClassName": "pushy"}))
    assert "PreemptionPolicy" in caught.value.stderr
