"""Berth as its chart installs it, on a real node, with a hub beside it that has a real model."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cluster import model, quickstart, release, stack, whole
from cluster.release import NAMESPACE, Api
from cluster.whole import Cluster
from e2e.test_memory import known, write_model

REPO = "tests/gemma"
FILE = "gemma.gguf"
TINY_REPO = "tests/tiny"
TINY_FILE = "tiny.gguf"
"""A model of plain attention, made here, its weights all zero."""


@dataclass(frozen=True)
class Installed:
    """The installed programs and how tests talk to them."""

    cluster: Cluster
    api: Api
    endpoint: str
    hub: str
    host_path: Path
    """A directory of the node that Models may name; it holds the real file."""

    # -- objects -------------------------------------------------------------------------------

    def kubectl(self, *arguments: str) -> str:
        return self.api.kubectl(*arguments)

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """One object; {} when there is none."""
        text = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return dict(json.loads(text)) if text else {}

    def every(
        self, kind: str, namespace: str = "default", labels: str = ""
    ) -> list[dict[str, Any]]:
        return list(
            json.loads(self.kubectl("get", kind, "-n", namespace, "-l", labels, "-o", "json"))[
                "items"
            ]
        )

    def model(self, name: str, source: dict[str, Any] | None = None, **spec: Any) -> str:
        """Declare a model of the real file."""
        hub = {"huggingFace": {"repo": REPO, "files": [FILE]}}
        self.cluster.plane.apply(
            {
                "apiVersion": "berth.dev/v1alpha1",
                "kind": "Model",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"source": source or hub, **spec},
            }
        )
        return name

    def claim(self, name: str, folder: Path) -> None:
        """A claim whose volume is a directory of the node."""
        spec: dict[str, Any] = {"storageClassName": "", "accessModes": ["ReadWriteOnce"]}
        host = {"key": "kubernetes.io/hostname", "operator": "Exists"}
        terms = [{"matchExpressions": [host]}]
        volume = {
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "default", "name": name},
            "hostPath": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        }
        asked = {"volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
        self.cluster.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": spec | volume,
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": spec | asked,
            },
        )

    def delete(self, *models: str) -> None:
        """Take models away and wait until their pods are gone."""
        self.kubectl("delete", "model", "--ignore-not-found", *models)
        self.wait("their pods are gone", lambda: not self.runner_pods(*models), 90)

    def runner_pods(self, *models: str) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self.every("pods", labels="app.kubernetes.io/managed-by=berth")
            if pod["metadata"]["labels"].get("berth.dev/model") in models
        ]

    def state(self, name: str) -> str:
        return stack.state_of(self.get("model", name))

    def wait(self, what: str, check: Callable[[], Any], deadline_s: float = 60.0) -> Any:
        return stack.wait_until(what, check, deadline_s)

    def wait_state(self, name: str, state: str, deadline_s: float = 60.0) -> None:
        self.wait(f"{name} is {state}", lambda: self.state(name) == state, deadline_s)

    def created_pods(self, name: str) -> int:
        """How many pods of this model were ever created, by the audit log."""
        return sum(
            entry["verb"] == "create"
            and entry.get("objectRef", {}).get("resource") == "pods"
            and not entry["objectRef"].get("subresource")
            and entry["objectRef"].get("name", "").startswith(f"{name}-")
            and entry["responseStatus"]["code"] == 201
            for entry in self.cluster.plane.audited()
        )

    # -- requests ------------------------------------------------------------------------------

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.endpoint, timeout=180, limits=limits)

    async def ask(self, name: str, **more: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.post("/v1/chat/completions", json=chat(name, **more))

    # -- faults --------------------------------------------------------------------------------

    def kill_engine(self, name: str) -> None:
        """SIGKILL to the llama-server of this model's pod, found by its cgroup."""
        pod = self.get("pod", self.runner_pods(name)[0])
        for pid in _processes_of(pod["metadata"]["uid"], "llama-server"):
            subprocess.run(["kill", "-9", str(pid)], check=True)

    def kill_program(self, program: str) -> None:
        """SIGKILL to the process of one of Berth's programs in its pod; the kubelet starts it again."""
        for pod in self.every("pods", NAMESPACE, f"app.kubernetes.io/component={program}"):
            for pid in _processes_of(pod["metadata"]["uid"], "berth"):
                subprocess.run(["kill", "-9", str(pid)], check=True)


def chat(name: str, **more: Any) -> dict[str, Any]:
    body = {"model": name, "messages": [{"role": "user", "content": "Say hello."}]}
    return {**body, "max_tokens": 4, **more}


def _processes_of(pod_uid: str, command: str) -> list[int]:
    """Ids of the processes of a pod whose command line names ``command``; a pod has a few."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            cgroup = (folder / "cgroup").read_text()
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if pod_uid in cgroup.replace("_", "-") and command in line:
            found.append(int(folder.name))
    return found


@contextmanager
def installed(state_dir: Path) -> Iterator[Installed]:
    """A cluster with Berth in it for the time of the block."""
    with whole.cluster(state_dir, audit=True) as cluster:
        api = Api(cluster.plane.state_dir, cluster.kubeconfig)
        folder = state_dir / "hub" / REPO
        folder.mkdir(parents=True)
        (folder / FILE).hardlink_to(model.gguf()) if _same_disk(folder) else _copy(folder / FILE)
        tiny = state_dir / "hub" / TINY_REPO / TINY_FILE
        tiny.parent.mkdir(parents=True)
        write_model(known()["t-llama"], tiny)
        values = release.load_images(cluster)
        hub = quickstart.start_hub(cluster)
        values["settings"] = {
            "HF_ENDPOINT": hub,
            "SOURCE_ALLOW": f"{cluster.node.network.address}/32",
            "STORE_ROOT": str(cluster.node.folder / "store"),
            # Tests of idle unloads would else wait for a minute and a half after every start.
            "HEALTHY_BEFORE_UNLOAD": "3s",
        }
        kubelet = {"kubeletDir": str(cluster.node.folder / "kubelet")}
        values["agent"] = {"hostPaths": [str(folder)], "csi": kubelet}
        release.install(api, values)
        cluster.plane.apply(
            {
                "apiVersion": "berth.dev/v1alpha1",
                "kind": "Residency",
                "metadata": {"name": "everywhere"},
                "spec": {"priority": -1, "hostPaths": [str(folder)]},
            }
        )
        service = json.loads(
            api.kubectl("get", "service", quickstart.GATEWAY, "-n", NAMESPACE, "-o", "json")
        )
        yield Installed(cluster, api, f"http://{service['spec']['clusterIP']}", hub, folder)


def _same_disk(folder: Path) -> bool:
    return folder.stat().st_dev == model.gguf().stat().st_dev


def _copy(target: Path) -> None:
    target.write_bytes(model.gguf().read_bytes())
