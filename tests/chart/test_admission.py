"""Does a real API server let a runner's pod in, with the chart's priority class and under Pod Security?"""

import json
import subprocess

import pytest

from berth.api.runner import Runner
from berth.manifests.pod import runner_pod

pytestmark = pytest.mark.api


def pod(namespace, **spec):
    """The pod of a Runner that reads its files from a claim: no host path."""
    runner = Runner.model_validate(
        {
            "metadata": {"name": "m-0", "namespace": namespace, "uid": "u"},
            "spec": {
                "modelRef": {"name": "m", "uid": "u"},
                "nodeName": "a",
                "image": "berth/runner",
                "command": ["llama-server"],
                "claim": {"host": 1 << 30},
                "mount": {"persistentVolumeClaim": "weights"},
                **spec,
            },
        }
    )
    return json.dumps(runner_pod(runner))


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


def test_a_runner_passes_restricted_but_for_the_store_of_the_node(plane, restricted):
    kept = json.loads(dry_run(plane, pod(restricted)))
    assert (kept["spec"]["priority"], kept["spec"]["preemptionPolicy"]) == (0, "Never")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        dry_run(plane, pod(restricted, mount=None))
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
