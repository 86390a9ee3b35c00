"""The chart as Helm renders it, and a real API server that it was applied to."""

import json
import subprocess

import pytest
import yaml

from chart.places import CHART, NAMESPACE
from cluster import build
from cluster.controlplane import control_plane


@pytest.fixture(scope="session")
def helm():
    """Helm, called with arguments; gives the finished process."""
    binary = str(build.binary(build.HELM))

    def call(*args):
        return subprocess.run([binary, *args], capture_output=True, text=True, check=False)

    return call


@pytest.fixture(scope="session")
def render(helm):
    """The chart's objects with these values."""

    def objects(**values):
        answer = helm(
            "template", "berth", str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.37.2",
            *(f"--set-json={name}={json.dumps(value)}" for name, value in values.items()),
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        return [obj for obj in yaml.safe_load_all(answer.stdout) if obj]

    return objects


@pytest.fixture(scope="session")
def plane(render, tmp_path_factory):
    """An API server with the CRDs and everything of the chart but its test."""
    with control_plane(tmp_path_factory.mktemp("plane") / "state") as plane:
        plane.kubectl("apply", "--server-side", "-f", str(CHART / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        plane.apply(*(obj for obj in render() if obj["kind"] != "Pod"))
        yield plane
