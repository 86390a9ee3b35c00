"""How are API objects written down in a controller's test? Raw, as the API server sends them."""

import itertools
from typing import Any

from berth.api.meta import API_VERSION, timestamp
from berth.controller.store import Store

NOW = 1_000_000.0
"""The present, on the controller's clock."""
MIB = 1 << 20
GIB = 1 << 30
_versions = itertools.count(1)
Object = dict[str, Any]


def meta(name: str, namespace: str = "", **more: Any) -> Object:
    fields = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": str(next(_versions)),
        "generation": 1,
        "creationTimestamp": timestamp(NOW - 1000),
    }
    return fields | ({"namespace": namespace} if namespace else {}) | more


def model(name: str = "m", *, status: Object | None = None, **spec: Any) -> Object:
    annotations = spec.pop("annotations", {})
    more = spec.pop("meta", {})
    return {
        "apiVersion": API_VERSION,
        "kind": "Model",
        "metadata": meta(name, "ns", annotations=annotations, **more),
        "spec": {"source": {"url": {"uri": f"https://files.example/{name}.gguf"}}} | spec,
        "status": status or {},
    }


def runner(
    name: str = "m-0", *, of: str = "m", node: str = "a", status: Object | None = None, **spec: Any
) -> Object:
    more = spec.pop("meta", {})
    return {
        "apiVersion": API_VERSION,
        "kind": "Runner",
        "metadata": meta(name, "ns", **more),
        "spec": {
            "modelRef": {"name": of, "uid": f"uid-{of}"},
            "nodeName": node,
            "stage": "Reserved",
            "passId": "p1",
            "epoch": 1,
            "claim": {"host": GIB},
            "settingsHash": "s1",
        }
        | spec,
        "status": status or {},
    }


def pod(
    name: str = "m-0",
    *,
    node: str = "a",
    phase: str = "Running",
    ready: bool = True,
    memory: str = "1Gi",
    of_runner: bool = True,
    status: Object | None = None,
    **more: Any,
) -> Object:
    labels = {
        "app.kubernetes.io/managed-by": "berth",
        "berth.dev/runner": name,
        "berth.dev/runner-uid": f"uid-{name}",
        "berth.dev/model": "m",
    }
    return {
        "metadata": meta(
            name,
            "ns",
            labels=labels if of_runner else {},
            annotations={"berth.dev/claim": '{"host": 1073741824}'} if of_runner else {},
        )
        | more,
        "spec": {
            "nodeName": node,
            "containers": [{"resources": {"requests": {"memory": memory}}}],
        },
        "status": {
            "phase": phase,
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        | (status or {}),
    }


def node(name: str = "a", *, ready: bool = True, memory: str = "64Gi", **more: Any) -> Object:
    size = {"memory": memory, "pods": "110", "cpu": "8"}
    return {
        "metadata": meta(name, labels=more.pop("labels", {})),
        "spec": more,
        "status": {
            "capacity": size,
            "allocatable": size,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def inventory(name: str = "a", **status: Any) -> Object:
    return {
        "metadata": meta(name),
        "spec": {},
        "status": {
            "host": {"total": 64 * GIB, "available": 60 * GIB},
            "cpus": 8,
            "diskFree": 100 * GIB,
        }
        | status,
    }


def demand(
    name: str = "m", *, used: str | None = None, waiting: list[Object] | None = None
) -> Object:
    status = {"waiting": waiting or []} | ({"used": used} if used else {})
    return {"metadata": meta(name, "ns"), "spec": {}, "status": status}


def residency(name: str, **spec: Any) -> Object:
    return {"metadata": meta(name), "spec": spec}


def hold(name: str, *, conditions: list[Object] | None = None, **spec: Any) -> Object:
    return {"metadata": meta(name), "spec": spec, "status": {"conditions": conditions or []}}


def store(**kinds: list[Object]) -> Store:
    """A store that was listed: ``store(models=[model()], pods=[…])``."""
    found = Store()
    for name in vars(found):
        getattr(found, name).replace(kinds.get(name, []), str(next(_versions)))
    return found
