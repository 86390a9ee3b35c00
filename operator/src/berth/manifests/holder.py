"""Which pod keeps a copy of one file's weights in its node's memory?

In Berth's own namespace, owned by nobody: the controller makes it and takes it away. It runs as root
with the one capability that locking memory takes, on a read-only mount of that one file.
"""

import hashlib
from dataclasses import dataclass

from berth.api.meta import LABEL_MANAGED
from berth.manifests.names import MANAGED_BY, Object
from berth.units import Bytes, MiB

LABEL_HOLDS = "berth.dev/holds"
"""The first 63 hex digits of the file's SHA-256; the annotation of the same name has all of it."""
ANNOTATION_SIZE = "berth.dev/holds-bytes"
FILE_PATH = "/copy/file"
_BASE = 64 * MiB
_TABLES = 256
"""A page's entry in the page table is eight bytes of 4,096; twice that is allowed for."""


@dataclass(frozen=True)
class HolderSettings:
    """What every holder of a cluster shares."""

    namespace: str = "berth-system"
    image: str = ""
    """Empty: no copy is made."""
    store_root: str = "/var/lib/berth"
    priority_class: str = "berth-runner"


def holder_claim(size: int) -> Bytes:
    """What the pod may hold, in bytes: the file, the program, and page tables of a large one."""
    return Bytes(size + max(_BASE, _BASE // 2 + size // _TABLES))


def held_file(pod: Object) -> tuple[str, Bytes] | None:
    """SHA-256 and bytes of the file that a pod holds; None for a pod that says nothing of the kind."""
    told = pod["metadata"].get("annotations") or {}
    sha256, size = told.get(LABEL_HOLDS) or "", told.get(ANNOTATION_SIZE) or ""
    return (sha256, Bytes(int(size))) if sha256 and size.isdigit() else None


def holder_name(node: str, sha256: str) -> str:
    """The same copy has the same name: two controllers make one."""
    return f"berth-holds-{sha256[:12]}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"


def holder_pod(node: str, sha256: str, size: int, settings: HolderSettings) -> Object:
    """The pod that holds this file on this node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": holder_name(node, sha256),
            "namespace": settings.namespace,
            "labels": {LABEL_MANAGED: MANAGED_BY, LABEL_HOLDS: sha256[:63]},
            "annotations": {LABEL_HOLDS: sha256, ANNOTATION_SIZE: str(size)},
        },
        "spec": _spec(node, sha256, size, settings),
    }


def _spec(node: str, sha256: str, size: int, settings: HolderSettings) -> Object:
    this_node = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [this_node]}]}
    blob = f"{settings.store_root}/blobs/sha256/{sha256}"
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": settings.priority_class,
        "preemptionPolicy": "Never",
        # Where a runner may be, its weights may be.
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(size, settings)],
        "volumes": [
            {"name": "file", "hostPath": {"path": blob, "type": "File"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Mi"}},
        ],
    }


def _container(size: int, settings: HolderSettings) -> Object:
    memory = {"memory": str(holder_claim(size))}
    return {
        "name": "holder",
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "berth.runner.holder", FILE_PATH],
        # Ready once every page is locked, however long the disk takes; then nobody asks again.
        "startupProbe": {
            "exec": {"command": ["test", "-e", "/tmp/held"]},
            "periodSeconds": 1,
            "failureThreshold": 3600,
        },
        "resources": {"requests": memory | {"cpu": "10m"}, "limits": memory},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "file", "mountPath": FILE_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
