"""Which memory of a stopped runner is not seen back yet? Live figures are older than the ledger.

A node's figures are written by quanta and after the fact. Between the end of a runner and the next
figures, what it held looks like somebody else's memory. Until the figures have moved, it counts as
on its way back: admission on the node, which measures, has the last word.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from berth.planner.state import HOST, Device, Node, Runner, Stage
from berth.units import Bytes

PATIENCE_S = 15.0
"""How long after its end a runner's memory may be on its way: then it is somebody else's."""

Held = Mapping[str, int]
"""Bytes by device UUID or HOST."""


@dataclass
class _Runner:
    node: str
    held: Held
    used_then: Held
    """What the node's figures said was used when the runner was last seen to hold this."""
    gone_at: float | None = None


@dataclass
class Returning:
    """What runners were last known to hold, and what of it the nodes' figures do not show yet."""

    _runners: dict[str, _Runner] = field(default_factory=dict)

    def held(self, uid: str) -> tuple[tuple[str, Bytes], ...]:
        """What the runner was last known to hold; empty when it was never measured."""
        known = self._runners.get(uid)
        return tuple((place, Bytes(size)) for place, size in known.held.items()) if known else ()

    def note(self, runners: Iterable[Runner], nodes: Iterable[Node], now: float) -> None:
        """Remember what each runner holds; start the clock of those that are gone."""
        used = {node.name: used_on(node) for node in nodes}
        present = set()
        for runner in runners:
            present.add(runner.uid)
            if runner.measured and runner.stage is not Stage.STOPPING:
                held = {place: int(size) for place, size in runner.measured}
                then = used.get(runner.node, {})
                self._runners[runner.uid] = _Runner(runner.node, held, then)
        for uid, known in list(self._runners.items()):
            if uid in present:
                known.gone_at = None
            elif known.gone_at is None:
                known.gone_at = now
            elif now - known.gone_at > PATIENCE_S:
                del self._runners[uid]

    def corrected(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """The nodes with what is on its way back counted as free."""
        gone: dict[str, list[_Runner]] = defaultdict(list)
        for runner in self._runners.values():
            if runner.gone_at is not None:
                gone[runner.node].append(runner)
        return tuple(_corrected(n, gone[n.name]) if n.name in gone else n for n in nodes)


def _corrected(node: Node, gone: Iterable[_Runner]) -> Node:
    used, due = used_on(node), dict.fromkeys(used_on(node), 0)
    for runner in gone:
        for place, size in runner.held.items():
            back = max(0, runner.used_then.get(place, 0) - used.get(place, 0))
            due[place] = due.get(place, 0) + max(0, size - back)
    if not any(due.values()):
        return node
    return replace(
        node,
        available=Bytes(min(node.capacity, node.available + due[HOST])),
        devices=tuple(_freed(device, due.get(device.uuid, 0)) for device in node.devices),
    )


def used_on(node: Node) -> dict[str, int]:
    """Bytes in use on the host and on each device, by the node's figures."""
    used = {HOST: max(0, node.capacity - node.available)}
    return used | {device.uuid: int(device.used or 0) for device in node.devices}


def _freed(device: Device, size: int) -> Device:
    if device.used is None or not size:
        return device
    return replace(device, used=Bytes(max(0, device.used - size)))
