"""What if runners hold more of a place than it has, because it shrank or they outgrew their claims?"""

from collections import defaultdict

from berth.planner.actions import Drain
from berth.planner.amounts import Amounts
from berth.planner.arithmetic import gpu_reserve, host_reserve, is_unified
from berth.planner.book import Book
from berth.planner.eviction import evictable
from berth.planner.state import HOST, NOBODY, Node, Runner, Stage
from berth.planner.wishes import Want, Wish
from berth.reasons import Reason
from berth.units import show_bytes

_FOR_NOBODY = Wish(NOBODY, Want.PINNED, since=0.0)
"""Room is made for nobody in particular: only what has long been idle gives way."""

_HOLDING = frozenset({Stage.STARTING, Stage.UP})


def overcommitted(book: Book) -> dict[str, tuple[str, str]]:
    """By node: the place that is over, and a sentence with the numbers.

    Only what our own pods hold counts, against capacity less reserve: strangers come and go, and a
    reservation without a pod holds nothing yet.
    """
    held: dict[str, Amounts] = defaultdict(lambda: defaultdict(int))
    for runner in book.state.runners:
        if runner.stage not in _HOLDING or runner.node not in book.nodes:
            continue
        seen = dict(runner.measured)
        held[runner.node][HOST] += max(runner.claim.host, seen.get(HOST, 0))
        for uuid, size in runner.claim.devices:
            held[runner.node][uuid] += max(size, seen.get(uuid, 0))
    found = {}
    for name in sorted(held):
        over = _place_over(book.nodes[name], held[name])
        if over is not None:
            found[name] = over
    return found


def _place_over(node: Node, held: Amounts) -> tuple[str, str] | None:
    host, limit = held.get(HOST, 0), node.capacity - host_reserve(node)
    for device in node.devices:
        if is_unified(device):
            host += held.get(device.uuid, 0)
            continue
        most = device.capacity - gpu_reserve(device, node.policy)
        taken = held.get(device.uuid, 0)
        if taken > most:
            return device.uuid, _sentence(f"{node.name} cuda:{device.index}", taken, most)
    return (HOST, _sentence(f"{node.name} host", host, limit)) if host > limit else None


def _sentence(where: str, taken: int, most: int) -> str:
    return f"{where} is over-committed: runners hold {show_bytes(taken)} of {show_bytes(most)}"


def plan_overcommit(book: Book) -> None:
    """Bring a place that is over back within its bounds, in order and never at once.

    1. It is told in the verdict of every model that has a runner there.
    2. While anything on the node is leaving, nothing more is done.
    3. One runner that has long been idle, the cheapest that holds something of the place, drains.
    4. Nobody that is in use, loading or pinned is stopped for it: the guard on the node is for that.
    """
    for name, (dim, text) in overcommitted(book).items():
        book.over[name] = text
        if any(book.is_leaving(runner) for runner in book.by_node.get(name, ())):
            continue
        place = book.at(name)
        for _, runner in evictable(book, place, _FOR_NOBODY):
            if book.takes(runner, place.unified).get(dim, 0) > 0:
                _drain(book, runner)
                break


def _drain(book: Book, runner: Runner) -> None:
    deadline = book.state.now + book.models[runner.model].drain_timeout_s
    book.decide(runner, Drain(runner.uid, Reason.MEMORY, deadline))
