"""Does kubectl print a warning, with bytes, for a change that can raise memory, and change all the same?"""

import json
import subprocess

import pytest

from cluster import build

pytestmark = pytest.mark.api
MIB = 1 << 20
STATUS = {
    "contextLength": 4096,
    "parallel": 1,
    "needs": {"gpu": 1000 * MIB, "host": 100 * MIB, "kvCache": 400 * MIB},
}


def model(name, **spec):
    source = {"url": {"uri": "https://files.example/m.gguf"}}
    return {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"source": source, **spec},
    }


def applied(plane, obj):
    """What a person sees who applies it: kubectl's words, warnings included."""
    answer = subprocess.run(
        [
            str(build.binary(build.KUBE)), "kubectl", "--kubeconfig", str(plane.kubeconfig),
            "apply", "--server-side", "--force-conflicts", "-f", "-",
        ],
        input=json.dumps(obj), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line.partition("deny")[2] or line for line in answer.stderr.splitlines()]


@pytest.fixture
def warn(plane, request):
    """Apply a change of a Model whose needs are known; gives the warnings."""
    name = f"warned-{abs(hash(request.node.name)) % 10**8}"
    applied(plane, model(name))
    patch = json.dumps({"status": STATUS})
    plane.kubectl("patch", "model", name, "--subresource=status", "--type=merge", "-p", patch)
    return name, lambda **spec: applied(plane, model(name, **spec))


@pytest.mark.parametrize(
    ("change", "want"),
    [
        pytest.param(
            {"overrides": {"contextLength": 8192}},
            "one runner of {} takes 1100 MiB now and may take up to 1500 MiB: "
            "context 4096 to 8192, slots 1 to 1; what it would evict: kubectl berth diff -f FILE",
            id="a longer context",
        ),
        pytest.param(
            {"overrides": {"parallel": 3}},
            "one runner of {} takes 1100 MiB now and may take up to 1900 MiB: "
            "context 4096 to 4096, slots 1 to 3; what it would evict: kubectl berth diff -f FILE",
            id="more slots",
        ),
        pytest.param(
            {"overrides": {"cacheRam": "2Gi"}},
            "each runner of {} takes 2Gi of host memory for saved prompts beside 1100 MiB; "
            "what it would evict: kubectl berth diff -f FILE",
            id="saved prompts",
        ),
        pytest.param(
            {"minReplicas": 3},
            "3 runners of {} take 3300 MiB, where 0 took 0 MiB; "
            "what it would evict: kubectl berth diff -f FILE",
            id="more copies",
        ),
    ],
)
def test_a_change_that_can_raise_memory_is_warned_of_and_made(plane, warn, change, want):
    name, change_it = warn
    (told,) = change_it(**change)
    assert told.startswith("Warning: ")
    assert told.endswith(want.format(name))
    kept = json.loads(plane.kubectl("get", "model", name, "-o", "json"))["spec"]
    assert {key: kept[key] for key in change} == change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"overrides": {"contextLength": 2048}}, id="a shorter context"),
        pytest.param({"idleTimeout": "5m"}, id="what costs no memory"),
        pytest.param({"minReplicas": 1}, id="one copy"),
    ],
)
def test_nothing_is_said_of_other_changes(warn, change):
    assert warn[1](**change) == []


def test_the_warnings_can_be_switched_off(render):
    assert "berth-memory" in {obj["metadata"]["name"] for obj in render()}
    quiet = render(warnings={"memory": False})
    assert "berth-memory" not in {obj["metadata"]["name"] for obj in quiet}
