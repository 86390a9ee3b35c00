"""Does a pod get its own runner's files from the volume driver, read-only, and nobody else's?"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from berth.agent.csi import messages
from berth.agent.csi.mounts import Mounted, read_mountinfo
from berth.agent.csi.server import Driver, Sockets, serving
from berth.agent.csi.volumes import Volumes
from berth.agent.loans import Loan, Loans
from berth.manifests.lent import DRIVER


@dataclass
class FakeMounts:
    """A kernel that mounts nothing. The store is its own file system, seen at its folder."""

    store: Path
    binds: dict[Path, Path] = field(default_factory=dict)

    def bind(self, source: Path, target: Path) -> None:
        self.binds[target] = source

    def unbind(self, target: Path) -> None:
        del self.binds[target]

    def all(self) -> list[Mounted]:
        homes = [Mounted("0:1", Path("/"), Path("/")), Mounted("0:2", Path("/vol"), self.store)]
        bound = [
            Mounted("0:2", Path("/vol") / source.relative_to(self.store), target)
            for target, source in self.binds.items()
        ]
        return homes + bound


class Kubelet:
    """The kubelet's side of both sockets."""

    def __init__(self, folder: Path, channels: dict[str, grpc.Channel]) -> None:
        self.folder = folder
        self._channels = channels

    def call(self, method: str, request, answer=messages.Empty):
        socket = "registration" if method.startswith("pluginregistration") else "csi"
        call = self._channels[socket].unary_unary(
            f"/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=10, wait_for_ready=True)

    def target(self, pod_uid: str) -> Path:
        return self.folder / "pods" / pod_uid / "volumes/kubernetes.io~csi/models/mount"

    def publish(self, pod: str, namespace="team", volume="weights", target=None, ephemeral="true"):
        target = target or self.target(f"uid-of-{pod}")
        context = {
            "volume": volume,
            "csi.storage.k8s.io/pod.name": pod,
            "csi.storage.k8s.io/pod.namespace": namespace,
            "csi.storage.k8s.io/ephemeral": ephemeral,
        }
        pairs = [messages.Pair(key=key, value=value) for key, value in context.items()]
        request = messages.Publish(volume_id="v", target_path=str(target), volume_context=pairs)
        self.call("csi.v1.Node/NodePublishVolume", request)
        return target

    def unpublish(self, target) -> None:
        request = messages.Unpublish(volume_id="v", target_path=str(target))
        self.call("csi.v1.Node/NodeUnpublishVolume", request)


@pytest.fixture
def store(tmp_path):
    """A store that has lent the files of runner ``u-1`` to pod team/gemma-0."""
    root = tmp_path / "store"
    (root / "runners" / "u-1").mkdir(parents=True)
    (root / "runners" / "u-1" / "gemma.gguf").write_bytes(b"GGUF")
    Loans(root).note(Loan(runner="u-1", namespace="team", pod="gemma-0"))
    return root


@pytest.fixture
def mounts(store):
    return FakeMounts(store)


@pytest.fixture
def folder():
    """The kubelet's; a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as found:
        yield Path(found)


@pytest.fixture
def volumes(store, mounts, folder):
    return Volumes(store, folder / "pods", mounts)


@pytest.fixture
def kubelet(volumes, folder):
    sockets = Sockets.below(folder)
    with serving(Driver("node-a", "1.2.3", sockets, volumes)):
        channels = {
            "csi": grpc.insecure_channel(f"unix:{sockets.csi}"),
            "registration": grpc.insecure_channel(f"unix:{sockets.registration}"),
        }
        yield Kubelet(folder, channels)
        for channel in channels.values():
            channel.close()


def test_the_driver_registers_itself(kubelet):
    found = kubelet.call(
        "pluginregistration.Registration/GetInfo", messages.Empty(), messages.Registration
    )
    assert (found.type, found.name, list(found.supported_versions)) == (
        "CSIPlugin",
        DRIVER,
        ["1.0.0"],
    )
    assert found.endpoint == str(kubelet.folder / "plugins/store.berth.dev/csi.sock")
    status = messages.RegistrationStatus(plugin_registered=True)
    kubelet.call("pluginregistration.Registration/NotifyRegistrationStatus", status)


def test_the_driver_says_who_it_is_and_where(kubelet):
    found = kubelet.call("csi.v1.Identity/GetPluginInfo", messages.Empty(), messages.PluginInfo)
    assert (found.name, found.vendor_version) == (DRIVER, "1.2.3")
    node = kubelet.call("csi.v1.Node/NodeGetInfo", messages.Empty(), messages.NodeInfo)
    assert node.node_id == "node-a"
    ready = kubelet.call("csi.v1.Identity/Probe", messages.Empty(), messages.ProbeResponse)
    assert ready.ready.value


def test_a_runners_pod_gets_its_files_and_asking_again_mounts_nothing_twice(kubelet, mounts, store):
    target = kubelet.publish("gemma-0")
    kubelet.publish("gemma-0")
    assert mounts.binds == {target: store / "runners" / "u-1"}
    assert target.is_dir()


def test_an_unpublished_volume_leaves_nothing_and_twice_is_no_error(kubelet, mounts):
    target = kubelet.publish("gemma-0")
    kubelet.unpublish(target)
    kubelet.unpublish(target)
    assert (mounts.binds, target.exists(), target.parent.exists()) == ({}, False, True)


@pytest.mark.parametrize(
    ("asked", "code", "word"),
    [
        pytest.param(
            {"pod": "mallory"}, "NOT_FOUND", "it is no runner", id="a pod that is no runner's"
        ),
        pytest.param(
            {"pod": "gemma-0", "namespace": "other"},
            "NOT_FOUND",
            "nothing is lent to pod other/gemma-0",
            id="the same name in another namespace",
        ),
        pytest.param(
            {"pod": "gemma-0", "volume": "blobs"},
            "INVALID_ARGUMENT",
            "has no volume 'blobs'",
            id="another folder of the store",
        ),
        pytest.param(
            {"pod": "gemma-0", "ephemeral": "false"},
            "INVALID_ARGUMENT",
            "no persistent ones",
            id="a persistent volume",
        ),
        pytest.param(
            {"pod": "gemma-0", "target": "/etc"},
            "INVALID_ARGUMENT",
            "/etc is not below",
            id="a target that is no pod's",
        ),
    ],
)
def test_what_was_not_lent_is_refused_and_nothing_is_mounted(kubelet, mounts, asked, code, word):
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.publish(**asked)
    assert caught.value.code().name == code
    assert word in caught.value.details()
    assert mounts.binds == {}


def test_sessions_are_a_volume_only_of_a_runner_that_saves_them(kubelet, mounts, store):
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.publish("gemma-0", volume="sessions")
    assert "has no volume 'sessions'" in caught.value.details()
    Loans(store).note(Loan("u-2", "team", "chat-0", sessions="m/k"))
    (store / "sessions/m/k").mkdir(parents=True)
    target = kubelet.publish("chat-0", volume="sessions")
    assert mounts.binds == {target: store / "sessions/m/k"}


def test_a_runner_that_has_gone_lends_nothing_any_more(kubelet, store):
    Loans(store).drop("u-1")
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.publish("gemma-0")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_mounts_that_the_kubelet_has_forgotten_are_swept_and_others_stay(kubelet, volumes, mounts):
    kept = kubelet.publish("gemma-0", target=kubelet.target("kept"))
    (kept.parent / "vol_data.json").write_text("{}")
    left = kubelet.publish("gemma-0", target=kubelet.target("left"))
    assert volumes.sweep() == [left]
    assert set(mounts.binds) == {kept}


def test_mount_points_with_blanks_and_letters_of_any_script_are_read():
    line = "36 35 98:0 /mnt1 /mnt\\0402/å rw,noatime master:1 - ext3 /dev/root rw"
    assert list(read_mountinfo(line)) == [Mounted("98:0", Path("/mnt1"), Path("/mnt 2/å"))]


@pytest.mark.skipif(os.geteuid() != 0, reason="mount(2) needs root")
def test_the_kernel_binds_read_only_what_is_seen_read_only_for_everybody_at_once(tmp_path):
    """In a mount namespace of its own: the store read-only beside a shared folder of pods, as in the chart."""
    script = """
import errno, subprocess, sys
from pathlib import Path
from berth.agent.csi.mounts import Mounts
from berth.agent.csi.volumes import Volumes
from berth.agent.loans import Loan, Loans
base = Path(sys.argv[1])
real, store, pods, host = (base / name for name in ("real", "store", "pods", "host"))
for folder in (real / "runners" / "u", store, pods, host):
    folder.mkdir(parents=True)
(real / "runners" / "u" / "f").write_text("weights")
Loans(real).note(Loan(runner="u", namespace="n", pod="p"))
def mount(*words): subprocess.run(["mount", *map(str, words)], check=True)
mount("--bind", real, store); mount("-o", "remount,bind,ro", store)
mount("-t", "tmpfs", "none", pods); mount("--make-shared", pods); mount("--rbind", pods, host)
volumes = Volumes(store, pods, Mounts())
target = pods / "uid" / "volumes" / "kubernetes.io~csi" / "models" / "mount"
volumes.publish(str(target), {"volume": "weights", "csi.storage.k8s.io/pod.name": "p",
  "csi.storage.k8s.io/pod.namespace": "n", "csi.storage.k8s.io/ephemeral": "true"})
for seen in (target, host / target.relative_to(pods)):
    print((seen / "f").read_text())
    try:
        (seen / "new").write_text("x")
    except OSError as err:
        print(errno.errorcode[err.errno])
open_file = (target / "f").open()
volumes.unpublish(str(target))
print(target.exists(), (host / "uid/volumes/kubernetes.io~csi/models").exists(), open_file.read())
"""
    command = ["unshare", "--mount", "--propagation=private", sys.executable, "-c", script]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [
        "weights", "EROFS", "weights", "EROFS", "False", "True", "weights",
    ], done.stderr  # fmt: skip
