"""How much of what a policy sets aside for programs outside Berth do they use just now?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from berth.agent.host import Host
from berth.api.meta import LABEL_MANAGED, bytes_of
from berth.api.residency import ClaimPolicy
from berth.policy import selects
from berth.units import Bytes

OTHERS = f"{LABEL_MANAGED}!=berth"
"""Selects the pods that are not Berth's."""


@dataclass(frozen=True)
class OtherPod:
    """A pod on a node that is not Berth's."""

    uid: str
    node: str
    labels: Mapping[str, str] = field(default_factory=dict)


def read_other(obj: dict[str, Any]) -> OtherPod | None:
    """None for one that is not on a node, or has ended."""
    meta, node = obj["metadata"], (obj.get("spec") or {}).get("nodeName") or ""
    ended = (obj.get("status") or {}).get("phase") in ("Failed", "Succeeded")
    if not node or ended:
        return None
    return OtherPod(meta["uid"], node, dict(meta.get("labels") or {}))


def claims_in_use(claims: Sequence[ClaimPolicy], host: Host, pods: Iterable[OtherPod]) -> Bytes:
    """Bytes of host memory that the claims' own programs hold, of each claim no more than it sets aside.

    1. Pods that a claim's selector selects count by their cgroup.
    2. Processes of no pod that have a claim's name in their command line count by what is theirs alone.
    What cannot be told counts as not in use: then more looks foreign than is, never less.
    """
    if not claims:
        return Bytes(0)
    found = list(pods)
    processes = [one for pid in host.pids() if (one := host.process(pid)) and not one.pod_uid]
    total = 0
    for claim in claims:
        chosen = [pod for pod in found if claim.selector and selects(claim.selector, pod.labels)]
        figures = (host.pod(pod.uid) for pod in chosen)
        sizes = [int(one.held) for one in figures if one is not None]
        sizes += [int(one.held) for one in processes if claim.name in one.command]
        total += min(sum(sizes), bytes_of(claim.memory))
    return Bytes(total)
