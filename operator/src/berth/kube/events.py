"""How is a Kubernetes Event written? One line per thing that really happened."""

import uuid
from typing import Any

from berth.kube.client import ApiError, ApiUnreachableError, Kube
from berth.kube.refs import EVENTS
from berth.settings import Settings


async def emit(
    kube: Kube,
    subject: dict[str, Any],
    *,
    program: str,
    reason: str,
    message: str,
    at: str,
    warning: bool = False,
) -> bool:
    """Write an Event about ``subject`` (apiVersion, kind, metadata). False when it could not be.

    An Event tells what happened; what happened does not depend on it, so a failure is not raised.
    """
    meta = subject["metadata"]
    namespace = meta.get("namespace") or "default"
    body = {
        "apiVersion": EVENTS.api_version,
        "kind": "Event",
        "metadata": {
            "name": f"{meta['name'][:200]}.{uuid.uuid4().hex[:12]}",
            "namespace": namespace,
        },
        "eventTime": at,
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "action": reason,
        "note": message[:1000],
        "reportingController": f"berth.dev/{program}",
        "reportingInstance": Settings().text("POD_NAME") or program,
        "regarding": {
            "apiVersion": subject["apiVersion"],
            "kind": subject["kind"],
            "name": meta["name"],
            "namespace": meta.get("namespace", ""),
            "uid": meta.get("uid", ""),
        },
    }
    try:
        await kube.create(EVENTS, body, namespace)
    except (ApiError, ApiUnreachableError):
        return False
    return True
