"""Does a program in a pod reach the API server as its service account, and by nothing else?"""

import base64

import pytest
import yaml

from berth.kube.access import PodAccess
from berth.kube.client import ApiError, Kube
from berth.kube.refs import CONFIG_MAPS, NAMESPACES


@pytest.fixture
def account(bay, tmp_path):
    """What the kubelet mounts for the namespace's default service account; and where the server is."""
    config = yaml.safe_load(bay.stack.plane.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    token = bay.stack.plane.kubectl("create", "token", "default", "-n", bay.name)
    (tmp_path / "token").write_text(token)
    host, _, port = cluster["server"].removeprefix("https://").rpartition(":")
    return tmp_path, {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}


async def test_it_is_the_service_account_that_asks(bay, account):
    folder, environment = account
    async with Kube(PodAccess.here(environment, folder)) as kube:
        assert "v1." in await kube.raw("/version")
        with pytest.raises(ApiError) as caught:
            await kube.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, bay.name)
        assert caught.value.status == 403
        assert f"system:serviceaccount:{bay.name}:default" in caught.value.message


async def test_a_refused_token_is_read_anew(account):
    folder, environment = account
    token = (folder / "token").read_text()
    (folder / "token").write_text("out-of-date")
    access = PodAccess.here(environment, folder)
    async with Kube(access) as kube:
        with pytest.raises(ApiError) as caught:
            await kube.get(NAMESPACES, "default")
        assert caught.value.status == 401
        (folder / "token").write_text(token)
        with pytest.raises(ApiError) as caught:
            await kube.get(NAMESPACES, "default")
        assert caught.value.status == 403
