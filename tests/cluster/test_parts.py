"""Are the parts that need neither root nor a cluster what the rest takes them for?"""

import json
import os
import socket
import tarfile
from pathlib import Path

import pytest

from cluster import (
    build,
    cgroups,
    dns,
    images,
    mounts,
    network,
    node,
    oci,
    packages,
    ports,
    whole,
)
from cluster.controlplane import ControlPlane
from cluster.network import Network
from cluster.node import CLUSTER_DNS, Node
from cluster.problem import Problem


def test_one_program_becomes_an_image_whose_parts_are_named_by_their_sums(tmp_path: Path):
    program, archive = tmp_path / "program", tmp_path / "image.tar"
    program.write_bytes(b"\x7fELF")
    oci.write(archive, reference="localhost/a:1", program=program, name="a")
    with tarfile.open(archive) as tar:
        read = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    manifest_of = json.loads(read["index.json"])["manifests"][0]
    assert manifest_of["annotations"] == {"io.containerd.image.name": "localhost/a:1"}
    manifest = json.loads(read[f"blobs/sha256/{manifest_of['digest'].removeprefix('sha256:')}"])
    assert all(
        f"blobs/sha256/{part['digest'].removeprefix('sha256:')}" in read
        and len(read[f"blobs/sha256/{part['digest'].removeprefix('sha256:')}"]) == part["size"]
        for part in [manifest["config"], *manifest["layers"]]
    )


def test_the_same_program_is_the_same_image(tmp_path: Path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    written = []
    for name in ("one", "two"):
        oci.write(tmp_path / name, reference="localhost/a:1", program=program, name="a")
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("image", images.IMAGES, ids=lambda image: image.name)
def test_an_image_is_named_by_what_it_is_made_from(image: images.Image):
    assert image.containerfile.exists()
    assert image.reference() == image.reference()
    assert image.reference().startswith(f"localhost/berth/{image.name}:")


def test_dns_listens_where_the_kubelet_sends_pods():
    [service] = [m for m in dns.manifests("image") if m["kind"] == "Service"]
    assert service["spec"]["clusterIP"] == CLUSTER_DNS
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {dns.PORT}


def test_everything_of_the_kubelets_lies_below_its_folder(tmp_path: Path):
    here = Node(tmp_path)
    plane = ControlPlane(tmp_path, 1, 2, 3)
    pair = plane.authority.pair
    config = node.kubelet_config(here, plane=plane, serving=pair)
    paths = [config[name] for name in ("podLogsDir", "volumePluginDir")]
    assert all(Path(path).is_relative_to(tmp_path) for path in paths)
    assert config["cgroupRoot"] == f"/{here.cgroup}"


def test_two_folders_have_two_cgroups(tmp_path: Path):
    assert Node(tmp_path / "a").cgroup != Node(tmp_path / "b").cgroup


def test_pods_get_addresses_that_the_bridge_is_the_gateway_of(tmp_path: Path):
    here = Network()
    config = json.loads(network.cni_config(here, state_dir=tmp_path))
    [plugin] = config["plugins"]
    assert plugin["ipam"]["ranges"] == [[{"subnet": here.pods, "gateway": here.address}]]
    assert Path(plugin["ipam"]["dataDir"]).is_relative_to(tmp_path)


def test_a_link_name_fits_the_kernels_limit():
    assert len(Network().bridge) < 16


def test_mounts_below_a_folder_are_found_with_blanks_in_their_names():
    assert mounts.below(Path("/proc"))[-1] == Path("/proc")
    assert mounts.below(Path("/no such folder")) == []


def test_no_cgroup_of_a_name_that_nobody_made():
    assert cgroups.groups("berth-nobody-made-this") == []
    assert cgroups.members("berth-nobody-made-this") == set()


def test_missing_programs_are_named_by_their_packages():
    wanted = {"sh": "dash", "no-such-program": "no-such-package", "nor-this": "no-such-package"}
    assert packages.missing(wanted) == ["no-such-package"]


def test_a_node_without_root_is_refused_with_two_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Problem, match=r"needs root.*sudo -E make up.*CLUSTER=current"):
        whole.preflight(tmp_path)


def test_a_state_folder_too_deep_for_sockets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Problem, match="too long for sockets; use a shorter one"):
        whole.preflight(tmp_path / ("deep" * 30))


def test_programs_that_nobody_can_install_here_are_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Problem, match=r"not installed: one, two; install them"):
        packages.ensure({"no-such-program": "two"}, {"nor-this": "one"})


def test_a_missing_go_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Problem, match=r"Go is not installed; install Go 1\.26 or newer"):
        build.go_version()


def test_a_taken_port_is_named_with_its_purpose():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Problem, match=rf"port {port}, wanted for the gateway, is taken"):
            ports.require_free(port, purpose="the gateway")
