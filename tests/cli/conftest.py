"""The command line as a person calls it, and a real API server that knows Berth's kinds."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from berth.cli.main import main
from cluster.controlplane import control_plane

ROOT = Path(__file__).parents[2]


@pytest.fixture
def berth():
    """`berth` with arguments, in this process; gives exit code, output and errors."""

    def call(*args):
        return CliRunner().invoke(main, list(args), catch_exceptions=False)

    return call


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    with control_plane(tmp_path_factory.mktemp("plane") / "state") as plane:
        plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield plane


class Played:
    """A Model on the API server, and the controller that speaks of it, played by hand."""

    def __init__(self, plane, name):
        self.plane = plane
        self.name = name
        plane.apply(
            {
                "apiVersion": "berth.dev/v1alpha1",
                "kind": "Model",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"source": {"url": {"uri": "https://example.org/m.gguf"}}},
            }
        )

    def read(self):
        return json.loads(self.plane.kubectl("get", "model", self.name, "-o", "json"))

    def says(self, state, message="", **status):
        """The controller's next word."""
        ready = {
            "type": "Ready",
            "status": "True" if state == "Up" else "False",
            "reason": state,
            "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        body = {"status": {"conditions": [ready], **status}}
        self.plane.kubectl(
            "patch", "model", self.name, "--subresource=status", "--type=merge",
            f"-p={json.dumps(body)}",
        )  # fmt: skip

    def wait_asked(self, annotation):
        """The value of the request once somebody asked."""
        path = r"jsonpath={.metadata.annotations.berth\.dev/" + annotation + "}"
        self.plane.kubectl("wait", "model", self.name, f"--for={path}", "--timeout=20s")
        return self.read()["metadata"]["annotations"][f"berth.dev/{annotation}"]


@pytest.fixture
def played(plane, request):
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:60].rstrip("-")
    return Played(plane, name)
