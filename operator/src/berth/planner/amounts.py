"""How is what a node has, and what a runner takes of it, counted? By place, in one form for all."""

from collections.abc import Mapping
from dataclasses import dataclass

from berth.planner.state import HOST, Claim, Model, Node

ALLOCATABLE = "allocatable"
"""The scheduler's arithmetic of host memory: allocatable less the requests of all pods."""
PODS = "pods"
"""The scheduler's count of pods."""

Amounts = dict[str, int]
"""Bytes by HOST, ALLOCATABLE and device UUID; a count by PODS."""


@dataclass
class NodeBook:
    """One node's amounts. ``free`` counts every ledger entry; ``coming`` is what is being given back."""

    node: Node
    free: Amounts
    coming: Amounts
    emptied: Amounts
    """What one runner could get at most if every runner of ours and every stranger were gone."""
    disk: int
    unsure: frozenset[str]
    unified: frozenset[str]
    loading: frozenset[str] = frozenset()
    """Dims of which a loading runner takes an unknown part: it counts twice, in use and claimed."""
    _sizes: tuple[int, ...] | None = None

    def sizes(self) -> tuple[int, ...]:
        """``later`` of every device with memory of its own, the smallest first."""
        if self._sizes is None:
            own = (d.uuid for d in self.node.devices if d.uuid not in self.unified)
            self._sizes = tuple(sorted(self.later(uuid) for uuid in own))
        return self._sizes

    def widest(self) -> int:
        """``later`` of the roomiest device; 0 without one."""
        sizes = self.sizes()
        return sizes[-1] if sizes else 0

    def change(self, which: Amounts, delta: Mapping[str, int], sign: int) -> None:
        """Add to (or take off) ``free`` or ``coming``."""
        self._sizes = None
        add(which, delta, sign)

    def later(self, dim: str) -> int:
        """Amount free once what is draining or stopping has gone."""
        return self.free.get(dim, 0) + self.coming.get(dim, 0)

    def lacks(self, takes: Mapping[str, int]) -> Amounts:
        """What is missing for ``takes`` even when everything that is coming has come."""
        return {
            dim: size - self.later(dim)
            for dim, size in takes.items()
            if size > 0 and size > self.later(dim)
        }

    def holds_now(self, takes: Mapping[str, int]) -> bool:
        """Whether ``takes`` is free without waiting for anybody."""
        return all(size <= self.free.get(dim, 0) for dim, size in takes.items() if size > 0)


def amounts(node: Node, claim: Claim, unified: frozenset[str]) -> Amounts:
    """What a runner with ``claim`` takes of ``node``; unified devices are host memory."""
    host = int(claim.host)
    found: Amounts = {PODS: 1, ALLOCATABLE: host}
    for uuid, size in claim.devices:
        if uuid in unified:
            host += size
        else:
            found[uuid] = found.get(uuid, 0) + size
    found[HOST] = host
    return found


def missing_bytes(model: Model, node: Node) -> int:
    """Bytes of the model's files that ``node`` does not have yet."""
    return sum(size for digest, size in model.files if not digest or digest not in node.files)


def is_here(model: Model, node: Node) -> bool:
    """Whether every file of the model is in the node's store."""
    return all(digest and digest in node.files for digest, _ in model.files)


def add(target: Amounts, delta: Mapping[str, int], sign: int) -> None:
    for dim, size in delta.items():
        target[dim] = target.get(dim, 0) + sign * size
