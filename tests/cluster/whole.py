"""How is the whole cluster started so that pods run, and ended so that nothing is left?"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import (
    build,
    cache,
    cgroups,
    controlplane,
    dns,
    oci,
    packages,
    ports,
)
from cluster.containerd import PAUSE_IMAGE
from cluster.controlplane import CONTROLLER_MANAGER, SCHEDULER, ControlPlane, Settings
from cluster.node import Node
from cluster.problem import Problem
from cluster.progress import say

DNS_DEADLINE_S = 60
LONGEST_SOCKET_PATH = 100
"""The kernel allows 107 bytes; the longest socket of ours is named relative to the folder."""


@dataclass(frozen=True)
class Cluster:
    """A running control plane and its one node."""

    plane: ControlPlane
    node: Node

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    def load_image(self, archive: Path, *, reference: str) -> None:
        """Imports and unpacks an archive unless the node holds an image of that name already."""
        if reference in self.node.containerd.images():
            return
        answer = self.node.containerd.ctr("images", "import", str(archive))
        if answer.returncode != 0 or reference not in self.node.containerd.images():
            raise Problem(
                f"importing {reference} failed: {answer.stderr}", todo="see containerd's log"
            )


def preflight(state_dir: Path) -> None:
    """Raises Problem for the first thing that is missing, with what to do about it."""
    if os.geteuid() != 0:
        raise Problem(
            "a node needs root: it mounts file systems and makes cgroups and network links",
            todo="run as root (sudo -E make up), or use a cluster you have: make up CLUSTER=current",
        )
    if len(str(state_dir / "node/containerd/containerd.sock.ttrpc")) > LONGEST_SOCKET_PATH:
        raise Problem(f"the path {state_dir} is too long for sockets", todo="use a shorter one")
    build.go_version()
    cgroups.require()
    cache.require_space(state_dir, needed=4 << 30, purpose="a cluster")
    packages.ensure(packages.NODE)


def up(state_dir: Path, *, audit: bool = False) -> Cluster:
    """Starts what is not running yet; asking again changes nothing."""
    state_dir = state_dir.resolve()
    preflight(state_dir)
    for program in (build.KUBE, build.PAUSE, build.COREDNS):
        build.binary(program)
    host = Node(state_dir)
    settings = _settings(state_dir, host, audit=audit)
    say("starting the control plane")
    host.set_up_network(guarded_ports=[settings.port])
    plane = controlplane.start(state_dir, settings)
    cluster = Cluster(plane, host)
    say("starting the node")
    host.start_runtime()
    _load_program(cluster, build.PAUSE, reference=PAUSE_IMAGE)
    host.start(plane)
    _start_dns(cluster)
    say(f"the cluster is up: {plane.server}")
    return cluster


def running(state_dir: Path) -> Cluster:
    """The cluster of a folder; raises Problem if none was started there."""
    state_dir = state_dir.resolve()
    return Cluster(controlplane.running(state_dir), Node(state_dir))


def down(state_dir: Path) -> None:
    """Ends everything and removes the folder; raises Problem if anything is left on the host."""
    state_dir = state_dir.resolve()
    if not state_dir.exists():
        return
    host = Node(state_dir)
    host.stop()
    controlplane.stop_all(state_dir)
    left = host.leftovers()
    if left:
        raise Problem(f"still there: {'; '.join(left)}", todo="run `make down` again")
    shutil.rmtree(state_dir)


@contextmanager
def cluster(state_dir: Path, *, audit: bool = False) -> Iterator[Cluster]:
    """A whole cluster for the time of the block."""
    try:
        yield up(state_dir, audit=audit)
    finally:
        down(state_dir)


def _settings(state_dir: Path, host: Node, *, audit: bool) -> Settings:
    """As they were chosen when the cluster was first started, where it was."""
    if (state_dir / "controlplane.json").exists():
        return controlplane.running(state_dir).settings
    return Settings(
        components=(CONTROLLER_MANAGER, SCHEDULER),
        audit=audit,
        advertise=host.network.address,
        port=ports.free(1)[0],
    )


def _load_program(cluster: Cluster, program: build.Program, *, reference: str) -> None:
    binary = build.binary(program)
    name = f"{binary.name}-{cache.digest(reference)}.tar"
    archive = cache.entry(
        "images",
        name,
        make=lambda draft: oci.write(draft, reference=reference, program=binary, name=program.name),
    )
    cluster.load_image(archive, reference=reference)


def _start_dns(cluster: Cluster) -> None:
    reference = f"localhost/berth/coredns:{build.path_of(build.COREDNS).name.rpartition('-')[2]}"
    _load_program(cluster, build.COREDNS, reference=reference)
    cluster.plane.apply(*dns.manifests(reference))
    cluster.plane.kubectl(
        "--namespace=kube-system", "rollout", "status", "deployment/coredns",
        f"--timeout={DNS_DEADLINE_S}s",
    )  # fmt: skip
