"""A part of the shared cluster that one test has for itself: a namespace, and nodes with its label."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cluster.stack import Stack, state_of
from fakes.gguf import sparse_llama

GIB = 1 << 30
_numbers = itertools.count()


@dataclass
class Bay:
    """Names made here are unique in the cluster, so tests do not meet."""

    stack: Stack
    name: str
    nodes: list[str] = field(default_factory=list)

    # -- what there is -----------------------------------------------------------------------

    def node(self, suffix: str = "n", *, memory: int = 64 * GIB, gpus: str = "") -> str:
        """A node that only this test's models may use."""
        name = f"{self.name}-{suffix}"
        self.stack.node(name, memory=memory, gpus=gpus, labels={"bay": self.name})
        self.nodes.append(name)
        self.stack.wait(f"node {name} is ready", lambda: _is_ready(self.stack.get("node", name)))
        self.stack.wait(
            f"node {name} has an inventory",
            lambda: self.stack.get("nodeinventory", name).get("status"),
        )
        return name

    def file(self, name: str, *, weights: int, **shape: int) -> str:
        """A URL of a GGUF of about this many bytes (a hole)."""
        path = self.stack.hub_root / "files" / self.name / f"{name}.gguf"
        sparse_llama(path, weights=weights, **shape)
        return f"{self.stack.hub}/files/{self.name}/{name}.gguf"

    def claim(self, name: str, *, node: str = "") -> Path:
        """A claim with a volume, which only ``node`` sees where one is named; gives its folder."""
        folder = self.stack.claims_root / self.name / name
        folder.mkdir(parents=True)
        spec: dict[str, Any] = {
            "storageClassName": "",
            "accessModes": ["ReadOnlyMany"],
        }
        host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}}
        volume = spec | {
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": self.name, "name": name},
            "hostPath": {"path": str(folder)},
        }
        claim = spec | {
            "volumeName": f"{self.name}-{name}",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        self.stack.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{self.name}-{name}"},
                "spec": volume | ({"nodeAffinity": terms} if node else {}),
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": self.name},
                "spec": claim,
            },
        )
        return folder

    def claim_model(self, name: str, path: str, *, claim: str = "weights", **spec: Any) -> str:
        """Declare a model whose file is on a claim."""
        source = {"path": {"persistentVolumeClaim": claim, "path": path}}
        selector = {"nodeSelector": {"bay": self.name}}
        self.apply_model(name, {"source": source, **selector, **spec})
        return f"{self.name}-{name}"

    def condition(self, model: str, kind: str) -> dict[str, Any]:
        """One condition of a model; {} when there is none."""
        conditions = self.get(model).get("status", {}).get("conditions", [])
        return next((dict(c) for c in conditions if c["type"] == kind), {})

    def model(
        self,
        name: str,
        *,
        weights: int = GIB,
        engine: dict[str, Any] | None = None,
        profile: dict[str, Any] | None = None,
        **spec: Any,
    ) -> str:
        """Declare a model; returns its id. ``engine``: FAKE_… values of the played engine."""
        env = [{"name": f"FAKE_{k.upper()}", "value": str(v)} for k, v in (engine or {}).items()]
        overrides = {"env": env, **(profile or {})}
        self.apply_model(
            name,
            {
                "source": {"url": {"uri": self.file(name, weights=weights)}},
                "nodeSelector": {"bay": self.name},
                "overrides": overrides,
                **spec,
            },
        )
        return f"{self.name}-{name}"

    def apply_model(self, name: str, spec: dict[str, Any]) -> None:
        self.stack.plane.apply(
            {
                "apiVersion": "berth.dev/v1alpha1",
                "kind": "Model",
                "metadata": {"name": f"{self.name}-{name}", "namespace": self.name},
                "spec": spec,
            }
        )

    # -- what is seen ------------------------------------------------------------------------

    def get(self, model: str) -> dict[str, Any]:
        return self.stack.get("model", model, self.name)

    def state(self, model: str) -> str:
        return state_of(self.get(model))

    def wait(self, model: str, state: str, deadline_s: float = 30.0) -> dict[str, Any]:
        return self.stack.wait_state(model, state, self.name, deadline_s)

    def wait_needs(self, model: str) -> dict[str, Any]:
        """The Model once its header was read and its needs are worked out."""
        return dict(
            self.stack.wait(
                f"needs of {model}",
                lambda: self.get(model) if self.get(model).get("status", {}).get("needs") else None,
            )
        )

    def has_needs(self, model: str) -> bool:
        return "needs" in self.get(model).get("status", {})

    def annotate(self, model: str, key: str, value: str) -> None:
        """What a person does by hand."""
        self.stack.plane.kubectl(
            "annotate", "model", model, f"{key}={value}", "-n", self.name, "--overwrite"
        )

    async def until(self, what: str, check: Callable[[], Any], deadline_s: float = 30.0) -> None:
        """Wait while requests of this test go on."""
        await asyncio.to_thread(self.stack.wait, what, check, deadline_s)

    def runners(self) -> list[dict[str, Any]]:
        return self.stack.every("runners", self.name)

    def pods(self) -> list[dict[str, Any]]:
        return self.stack.every("pods", self.name)

    def pods_of(self, model: str) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self.pods()
            if pod["metadata"]["labels"].get("berth.dev/model") == model
        ]

    def created_pods(self) -> list[str]:
        """Every pod that was ever created in this namespace, by the audit log."""
        return [
            entry["objectRef"].get("name", "")
            for entry in self.stack.plane.audited()
            if entry["verb"] == "create"
            and entry.get("objectRef", {}).get("resource") == "pods"
            and not entry["objectRef"].get("subresource")
            and entry["objectRef"].get("namespace") == self.name
            and entry["responseStatus"]["code"] == 201
        ]

    # -- what clients do ---------------------------------------------------------------------

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.stack.endpoint, timeout=90, limits=httpx.Limits(max_connections=None)
        )

    async def ask(self, model: str, **more: Any) -> httpx.Response:
        """One chat request without a stream."""
        async with self.client() as client:
            return await client.post("/v1/chat/completions", json=chat(model, **more))

    async def stream(self, model: str, **more: Any) -> list[dict[str, Any] | str]:
        """Every data frame of a streamed chat, parsed; ``[DONE]`` stays text.

        An answer that breaks off is cut by the gateway after its error event.
        """
        frames: list[dict[str, Any] | str] = []
        async with (
            self.client() as client,
            client.stream(
                "POST", "/v1/chat/completions", json=chat(model, stream=True, **more)
            ) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            with contextlib.suppress(httpx.RemoteProtocolError):
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        data = line.removeprefix("data: ")
                        frames.append(data if data == "[DONE]" else json.loads(data))
        return frames


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any((row["type"], row["status"]) == ("Ready", "True") for row in conditions)


def chat(model: str, **more: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": "Say hello."}], **more}


def words(frames: list[dict[str, Any] | str]) -> str:
    """The text that a stream's frames carried."""
    found = ""
    for frame in frames:
        if isinstance(frame, dict):
            for choice in frame.get("choices", []):
                found += choice.get("delta", {}).get("content") or ""
    return found


@contextmanager
def bay(stack: Stack) -> Iterator[Bay]:
    """A bay for one test; its namespace and nodes go with it."""
    here = Bay(stack, f"bay{next(_numbers)}")
    stack.start_ended_programs()
    stack.plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": here.name}},
    )
    stack.wait(
        "the namespace has its service account",
        lambda: stack.get("sa", "default", here.name),
        deadline_s=90,
    )
    try:
        yield here
    finally:
        stack.plane.kubectl("delete", "namespace", here.name, "--wait=false")
        for name in here.nodes:
            stack.plane.kubectl("delete", "node", name, "--wait=false")
