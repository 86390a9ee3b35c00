"""What does a ledger entry hold of its node, and what is left there at the begin of a pass?"""

from collections.abc import Iterable, Sequence

from berth.planner.amounts import ALLOCATABLE, PODS, Amounts, NodeBook, amounts
from berth.planner.arithmetic import is_unified, rooms
from berth.planner.state import HOST, Node, Runner, Stage


def held_by(runner: Runner, node: Node, unified: frozenset[str]) -> Amounts:
    """The larger of claim and measurement in each place; ``unified`` devices are host memory."""
    if runner.stage is Stage.PREPARING:
        return {}  # It claims disk only; once reserved by a pass, `Book.place` has counted it.
    found = amounts(node, runner.claim, unified)
    seen: Amounts = {}
    for place, size in runner.measured:
        dim = HOST if place in unified else place
        seen[dim] = seen.get(dim, 0) + size
    for dim, total in seen.items():
        if dim == HOST or dim in found:
            found[dim] = max(found.get(dim, 0), total)
    return found


def open_book(node: Node, mine: Sequence[Runner], fetching: int) -> NodeBook:
    """The node's amounts with every entry counted; ``fetching``: bytes of files that are on their way."""
    unified = frozenset(device.uuid for device in node.devices if is_unified(device))
    found = rooms(node, mine)
    entries = [runner for runner in mine if runner.stage is not Stage.PREPARING]
    requests = sum(runner.claim.host for runner in entries)
    return NodeBook(
        node=node,
        free={dim: int(room.free) for dim, room in found.items()}
        | {
            ALLOCATABLE: node.allocatable - node.requested - requests,
            PODS: node.allocatable_pods - node.pods - len(entries),
        },
        coming={},
        emptied={dim: int(room.emptied) for dim, room in found.items()}
        | {ALLOCATABLE: int(node.allocatable), PODS: node.allocatable_pods},
        disk=int(node.disk_free) - fetching,
        unsure=frozenset(dim for dim, room in found.items() if room.unsure),
        unified=unified,
        loading=_unmeasured(entries, node, unified),
    )


def _unmeasured(entries: Iterable[Runner], node: Node, unified: frozenset[str]) -> frozenset[str]:
    """Places of which a loading runner takes a part that nobody has measured yet."""
    found: set[str] = set()
    for runner in entries:
        if runner.stage is not Stage.STARTING:
            continue
        known = {HOST if place in unified else place for place, _ in runner.measured}
        found |= set(held_by(runner, node, unified)) - known - {ALLOCATABLE, PODS}
    return frozenset(found)
