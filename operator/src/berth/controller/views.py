"""What does the controller keep of a pod and of a node? Just what a pass reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from berth.api.meta import (
    ANNOTATION_CLAIM,
    ANNOTATION_SOURCE_HASH,
    ANNOTATION_SPEC_HASH,
    LABEL_INSPECTS,
    LABEL_MANAGED,
    LABEL_MODEL,
    LABEL_RUNNER,
    LABEL_RUNNER_UID,
)
from berth.api.runner import Claim
from berth.manifests.holder import LABEL_HOLDS, held_file
from berth.planner.state import Taint
from berth.units import Bytes, parse_quantity

Object = dict[str, Any]
MANAGED_BY = "berth"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_NAME = "app.kubernetes.io/name"


@dataclass(frozen=True)
class Ended:
    """How a container ended. ``message`` is the runner program's report, or the kubelet's words."""

    exit_code: int
    reason: str
    message: str


@dataclass(frozen=True)
class Inspects:
    """Whose files a pod looks at, and how it was asked."""

    model_uid: str
    source_hash: str
    spec_hash: str


@dataclass(frozen=True)
class Holds:
    """Which file a pod keeps in its node's memory."""

    sha256: str
    size: Bytes


@dataclass(frozen=True)
class PodView:
    """A pod: of foreign ones only what their node's arithmetic needs."""

    name: str
    namespace: str
    uid: str
    node: str
    phase: str
    requested: Bytes
    """Memory that the scheduler counts for it; 0 once it has ended."""
    deleting: bool = False
    agent: bool = False
    ready: bool = False
    created: str = ""
    runner: str = ""
    """Name of the Runner that it belongs to; empty for every pod that is not a runner's."""
    runner_uid: str = ""
    model: str = ""
    """Its Model's name as a label holds it."""
    claim: Claim | None = None
    ip: str = ""
    reason: str = ""
    message: str = ""
    waiting_reason: str = ""
    waiting_message: str = ""
    ended: Ended | None = None
    scheduled: bool = False
    unscheduled_message: str = ""
    claims: tuple[str, ...] = ()
    """Names of the PersistentVolumeClaims that it mounts."""
    inspects: Inspects | None = None
    """Of a pod that looks at the files of a claim."""
    holds: Holds | None = None
    """Of a pod that holds a copy of weights."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        return self.phase in {"Failed", "Succeeded"}

    @property
    def is_runner(self) -> bool:
        return bool(self.runner_uid)


@dataclass(frozen=True)
class NodeView:
    """A node as the scheduler knows it."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = False
    schedulable: bool = True
    capacity: Bytes = Bytes(0)
    allocatable: Bytes = Bytes(0)
    allocatable_pods: int = 110

    @property
    def key(self) -> str:
        return self.name


def version_of(obj: Object) -> int:
    """The resource version; those of one kind are comparable as numbers."""
    text = str(obj["metadata"].get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0


def pod_view(obj: Object) -> PodView:
    """A raw pod as the controller keeps it."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels = meta.get("labels") or {}
    phase = status.get("phase") or "Pending"
    finished = phase in {"Failed", "Succeeded"}
    view: dict[str, Any] = {
        "name": meta["name"],
        "namespace": meta.get("namespace") or "",
        "uid": meta.get("uid") or "",
        "node": spec.get("nodeName") or "",
        "phase": phase,
        "requested": Bytes(0) if finished else requested_memory(spec),
        "deleting": bool(meta.get("deletionTimestamp")),
        "created": meta.get("creationTimestamp") or "",
        "ready": _condition(status, "Ready").get("status") == "True",
        "agent": labels.get(LABEL_COMPONENT) == "agent" and labels.get(LABEL_NAME) == "berth",
        "claims": _mounted_claims(spec),
    }
    if labels.get(LABEL_MANAGED) == MANAGED_BY and labels.get(LABEL_RUNNER_UID):
        view |= _runner_fields(meta, labels, spec, status) | _progress(spec, status)
    elif labels.get(LABEL_MANAGED) == MANAGED_BY and labels.get(LABEL_INSPECTS):
        view |= _progress(spec, status) | {"inspects": _inspects(meta)}
    elif labels.get(LABEL_MANAGED) == MANAGED_BY and labels.get(LABEL_HOLDS):
        view |= {"holds": _holds(obj), "node": spec.get("nodeName") or _wanted_node(spec)}
    return PodView(**view)


def _runner_fields(meta: Object, labels: Object, spec: Object, status: Object) -> Object:
    return {
        "node": spec.get("nodeName") or _wanted_node(spec),
        "runner": labels.get(LABEL_RUNNER) or meta["name"],
        "runner_uid": labels[LABEL_RUNNER_UID],
        "model": labels.get(LABEL_MODEL) or "",
        "claim": _claim(meta),
        "ip": status.get("podIP") or "",
    }


def _inspects(meta: Object) -> Inspects:
    owner, annotations = _first(meta.get("ownerReferences")), meta.get("annotations") or {}
    return Inspects(
        model_uid=owner.get("uid") or "",
        source_hash=annotations.get(ANNOTATION_SOURCE_HASH) or "",
        spec_hash=annotations.get(ANNOTATION_SPEC_HASH) or "",
    )


def _holds(pod: Object) -> Holds | None:
    held = held_file(pod)
    return Holds(*held) if held is not None else None


def _mounted_claims(spec: Object) -> tuple[str, ...]:
    claims = (volume.get("persistentVolumeClaim") for volume in spec.get("volumes") or ())
    return tuple(str(claim.get("claimName")) for claim in claims if claim)


def _progress(spec: Object, status: Object) -> Object:
    """How far the pod is, and in whose words it does not get further."""
    scheduled = _condition(status, "PodScheduled")
    container = _first(status.get("containerStatuses")).get("state") or {}
    waiting, ended = container.get("waiting") or {}, container.get("terminated")
    return {
        "reason": status.get("reason") or "",
        "message": (status.get("message") or "")[:1024],
        "waiting_reason": waiting.get("reason") or "",
        "waiting_message": (waiting.get("message") or "")[:1024],
        "ended": ended and _ended(ended),
        "scheduled": bool(spec.get("nodeName")),
        "unscheduled_message": (scheduled.get("message") or "")[:1024]
        if scheduled.get("status") == "False"
        else "",
    }


def _first(items: list[Object] | None) -> Object:
    return items[0] if items else {}


def _ended(state: Object) -> Ended:
    return Ended(
        exit_code=int(state.get("exitCode") or 0),
        reason=state.get("reason") or "",
        message=state.get("message") or "",
    )


def _claim(meta: Object) -> Claim | None:
    text = (meta.get("annotations") or {}).get(ANNOTATION_CLAIM)
    try:
        return Claim.model_validate(json.loads(text)) if text else None
    except (ValueError, ValidationError):
        return None


def _wanted_node(spec: Object) -> str:
    """The node that a runner's pod is bound to by affinity, before the scheduler has said so."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field_ in term.get("matchFields") or ():
            if field_.get("key") == "metadata.name" and field_.get("values"):
                return str(field_["values"][0])
    return ""


def requested_memory(spec: Object) -> Bytes:
    """What the scheduler counts: the larger of the containers together and each init container.

    Init containers that stay (``restartPolicy: Always``) count with the containers, and with every
    init container that starts after them.
    """
    running = sum(_memory(container) for container in spec.get("containers") or ())
    stays, peak = 0, 0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            stays += _memory(container)
            peak = max(peak, stays)
        else:
            peak = max(peak, stays + _memory(container))
    overhead = _quantity((spec.get("overhead") or {}).get("memory"))
    pod_level = _quantity(((spec.get("resources") or {}).get("requests") or {}).get("memory"))
    return Bytes((pod_level or max(running + stays, peak)) + overhead)


def _memory(container: Object) -> int:
    return _quantity(((container.get("resources") or {}).get("requests") or {}).get("memory"))


def _quantity(text: str | None) -> int:
    if not text:
        return 0
    try:
        return parse_quantity(text)
    except ValueError:
        return 0


def _condition(status: Object, kind: str) -> Object:
    found: Object = next((c for c in status.get("conditions") or () if c.get("type") == kind), {})
    return found


def node_view(obj: Object) -> NodeView:
    """A raw node as the controller keeps it."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    allocatable, capacity = status.get("allocatable") or {}, status.get("capacity") or {}
    return NodeView(
        name=meta["name"],
        uid=meta.get("uid") or "",
        labels=dict(meta.get("labels") or {}),
        taints=tuple(
            Taint(t["key"], t.get("value") or "", t.get("effect") or "NoSchedule")
            for t in spec.get("taints") or ()
        ),
        ready=_condition(status, "Ready").get("status") == "True",
        schedulable=not spec.get("unschedulable"),
        capacity=Bytes(_quantity(capacity.get("memory"))),
        allocatable=Bytes(_quantity(allocatable.get("memory"))),
        allocatable_pods=int(allocatable.get("pods") or 110),
    )
