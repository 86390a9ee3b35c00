"""How does this host become the one node of a cluster, and how does it stop being one?

containerd, kubelet and kube-proxy, all below one folder; the network, the mounts and the cgroups
that they need are made first and removed last.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import build, cache, certs, cgroups, mounts, network, ports
from cluster.containerd import Containerd
from cluster.controlplane import ControlPlane
from cluster.network import Network
from cluster.processes import ProcessTable

CLUSTER_DNS = "10.46.0.10"
KUBELET_PORT = 10250
READY_DEADLINE_S = 60


@dataclass(frozen=True)
class Node:
    """The node of one cluster; `state_dir` is the cluster's, as its control plane has it."""

    state_dir: Path
    name: str = "berth"
    network: Network = field(default_factory=Network)

    @property
    def folder(self) -> Path:
        return self.state_dir / "node"

    @property
    def cgroup(self) -> str:
        """Told by the folder, so that two clusters never remove each other's."""
        return f"berth-{cache.digest(str(self.state_dir))[:8]}"

    @property
    def processes(self) -> ProcessTable:
        return ProcessTable(self.state_dir)

    @property
    def containerd(self) -> Containerd:
        return Containerd(self.folder / "containerd", self.processes)

    def set_up_network(self, *, guarded_ports: Sequence[int]) -> None:
        """Before the control plane starts: it advertises the node's address."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        network.set_up(self.network, state_dir=self.state_dir, guarded_ports=guarded_ports)

    def start_runtime(self) -> None:
        """containerd, ready to take images."""
        self.containerd.folder.mkdir(parents=True, exist_ok=True)
        cni_conf = self.folder / "cni.d"
        cni_conf.mkdir(exist_ok=True)
        (cni_conf / "10-berth.conflist").write_text(
            network.cni_config(self.network, state_dir=self.folder)
        )
        self.containerd.start(cni_conf=cni_conf, enter=self._enter())

    def start(self, plane: ControlPlane) -> None:
        """kubelet and kube-proxy; returns when the node is Ready."""
        cgroups.create(self.cgroup)
        server = f"https://{self.network.address}:{plane.port}"
        kube = str(build.binary(build.KUBE))
        kubelet = [*self._enter(), kube, "kubelet", *self._kubelet_args(plane, server)]
        self.processes.start("kubelet", kubelet)
        self.processes.start("kube-proxy", [kube, "kube-proxy", self._proxy_config(plane, server)])
        self.processes.wait_until(
            lambda: is_ready(plane, self.name),
            what=f"node {self.name} is Ready",
            process="kubelet",
            deadline_s=READY_DEADLINE_S,
        )

    def stop(self) -> None:
        """Everything that `start` and `set_up_network` made; safe to ask for at any time."""
        for name in ("kubelet", "kube-proxy"):
            self.processes.stop(name)
        if self.processes.is_running("containerd"):
            self.containerd.remove_containers()
        self.containerd.end_shims()
        cgroups.remove(self.cgroup)
        self.processes.stop("containerd")
        mounts.stop_namespace(self.processes)
        network.tear_down(self.network, state_dir=self.state_dir)
        shutil.rmtree(self.folder, ignore_errors=True)

    def leftovers(self) -> list[str]:
        """What of this node is still on the host, in words."""
        return (
            [
                f"process {name}"
                for name in self.processes.names()
                if self.processes.is_running(name)
            ]
            + [f"container shim with pid {pid}" for pid in self.containerd.shims()]
            + [f"mount {point}" for point in mounts.below(self.state_dir)]
            + [f"cgroup {group}" for group in cgroups.groups(self.cgroup)]
            + network.leftovers(self.network, state_dir=self.state_dir)
        )

    def _enter(self) -> list[str]:
        """The command that enters the mount namespace that containerd and kubelet share."""
        return mounts.start_namespace(self.processes, folder=self.folder / "private")

    def _kubelet_args(self, plane: ControlPlane, server: str) -> list[str]:
        user = f"system:node:{self.name}"
        kubeconfig = plane.kubeconfig_for(user, groups=["system:nodes"], server=server)
        serving = plane.authority.issue(
            f"kubelet-{self.name}", hosts=[self.network.address, self.name]
        )
        config = self._write("kubelet.json", kubelet_config(self, plane=plane, serving=serving))
        return [
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.network.address}",
        ]

    def _proxy_config(self, plane: ControlPlane, server: str) -> str:
        kubeconfig = plane.kubeconfig_for("system:kube-proxy", server=server)
        config = self._write("kube-proxy.json", proxy_config(self, kubeconfig=kubeconfig))
        return f"--config={config}"

    def _write(self, name: str, config: dict[str, Any]) -> Path:
        """Once: kube-proxy ends itself when its file is written anew."""
        path = self.folder / name
        if not path.exists():
            path.write_text(json.dumps(config, indent=1))
        return path


def kubelet_config(node: Node, *, plane: ControlPlane, serving: certs.Pair) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.network.address,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plane.authority.pair.cert)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.cert),
        "tlsPrivateKeyFile": str(serving.key),
        "containerRuntimeEndpoint": f"unix://{node.containerd.socket}",
        "clusterDNS": [CLUSTER_DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": resolver_file(),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        # Tests kill the programs again and again; five minutes of pause would be all they see.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        # It would leave chains behind in tables that are not ours.
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(node.folder / "pod-logs"),
        "volumePluginDir": str(node.folder / "volume-plugins"),
        "serializeImagePulls": False,
        # Our images come from no registry: once collected they could not be had again.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi"},
    }


def proxy_config(node: Node, *, kubeconfig: Path) -> dict[str, Any]:
    healthz, metrics = ports.free(2)
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": node.name,
        "bindAddress": node.network.address,
        "healthzBindAddress": f"127.0.0.1:{healthz}",
        "metricsBindAddress": f"127.0.0.1:{metrics}",
        "clusterCIDR": node.network.pods_everywhere,
        # Node ports answer on the node's own address, not on the host's others.
        "nodePortAddresses": [f"{node.network.address}/32"],
        # The limits of connection tracking are the host's, not ours to change.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
    }


def is_ready(plane: ControlPlane, name: str) -> bool:
    found = json.loads(plane.kubectl("get", "nodes", "-o", "json"))["items"]
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for node in found
        if node["metadata"]["name"] == name
        for condition in node["status"].get("conditions", [])
    )


def resolver_file() -> str:
    """Where pods learn the host's name servers: one on loopback means nothing inside a pod."""
    upstream = Path("/run/systemd/resolve/resolv.conf")
    return str(upstream if upstream.exists() else Path("/etc/resolv.conf"))
