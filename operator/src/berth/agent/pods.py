"""What does the agent read of a pod? Only that of runners on its own node."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from berth.api.meta import ANNOTATION_CLAIM, LABEL_MANAGED, LABEL_RUNNER_UID
from berth.api.runner import Claim
from berth.manifests.holder import held_file, holder_claim
from berth.planner.state import Copy

Object = dict[str, Any]
SELECTOR = f"{LABEL_MANAGED}=berth"


@dataclass(frozen=True)
class Pod:
    """A runner's pod. ``ended``: its container runs no more and will not again."""

    uid: str
    name: str
    namespace: str
    node: str
    runner_uid: str
    ip: str = ""
    ended: bool = False
    deleting: bool = False
    claim: Claim | None = None
    copy: Copy | None = None
    """Of a pod that holds weights in memory, and is no runner's."""


def read_pod(obj: Object) -> Pod | None:
    """None for a pod that is neither a runner's nor holds a copy of weights, or not on a node yet."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    runner_uid = (meta.get("labels") or {}).get(LABEL_RUNNER_UID, "")
    node = spec.get("nodeName") or ""
    copy = _copy(obj, status)
    if not node or not (runner_uid or copy):
        return None
    return Pod(
        uid=meta["uid"],
        name=meta["name"],
        namespace=meta["namespace"],
        node=node,
        runner_uid=runner_uid,
        ip=status.get("podIP") or "",
        ended=status.get("phase") in ("Failed", "Succeeded"),
        deleting=bool(meta.get("deletionTimestamp")),
        claim=_claim((meta.get("annotations") or {}).get(ANNOTATION_CLAIM)),
        copy=copy,
    )


def _copy(pod: Object, status: Object) -> Copy | None:
    held = held_file(pod)
    if held is None or status.get("phase") in ("Failed", "Succeeded"):
        return None
    ready = any(
        c.get("type") == "Ready" and c.get("status") == "True"
        for c in status.get("conditions") or ()
    )
    sha256, size = held
    return Copy(sha256, size, holder_claim(size), ready)


def _claim(text: str | None) -> Claim | None:
    try:
        return None if text is None else Claim.model_validate(json.loads(text))
    except (ValueError, ValidationError):
        return None
