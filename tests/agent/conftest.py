"""A real API server that knows Berth's kinds, for the agent's tests that need one."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from agent.places import INVENTORIES, NAMESPACE, NODE, RUNNERS
from berth.kube.client import Kube
from berth.kube.refs import NAMESPACES, NODES, PODS, SECRETS, Ref
from cluster import controlplane
from cluster.controlplane import ControlPlane

CRDS = Path(__file__).resolve().parents[2] / "crds"
ACCOUNTS = Ref("v1", "ServiceAccount", "serviceaccounts", namespaced=True)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    settings = controlplane.Settings(audit=True)
    with controlplane.control_plane(tmp_path_factory.mktemp("plane"), settings) as running:
        running.apply(*(yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))))
        running.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield running


@pytest.fixture
async def kube(plane: ControlPlane) -> AsyncIterator[Kube]:
    async with await Kube.connect(kubeconfig=str(plane.kubeconfig)) as connected:
        for ref, name in ((NAMESPACES, NAMESPACE), (NODES, NODE)):
            await connected.apply(ref, name, {}, manager="tests")
        await connected.apply(ACCOUNTS, "default", {}, manager="tests", namespace=NAMESPACE)
        yield connected
        for ref in (PODS, RUNNERS, SECRETS):
            for obj in (await connected.list_all(ref, NAMESPACE))[0]:
                await connected.delete(ref, obj["metadata"]["name"], NAMESPACE, grace_s=0)
        await connected.delete(INVENTORIES, NODE)
