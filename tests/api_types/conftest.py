"""A real API server that knows Berth's kinds, one for all tests here."""

from pathlib import Path

import pytest

from cluster.controlplane import control_plane

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    with control_plane(tmp_path_factory.mktemp("plane") / "state") as plane:
        plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield plane
