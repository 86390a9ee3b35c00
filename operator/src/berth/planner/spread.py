"""Which devices are there for a model that is to have a runner on each?"""

from berth.planner.book import Book
from berth.planner.candidates import (
    HARD,
    cpu_candidates,
    gpu_candidates,
    holds_emptied,
    refuse_node,
)
from berth.planner.state import Model
from berth.planner.wishes import Want, Wish, can_be_planned


def plan_spread(book: Book, model: Model) -> tuple[str, ...]:
    """The places of a ``PerDevice`` model, as targets, by node and device.

    1. Every device that it may use and that could hold it emptied. A model that takes several
       devices at once has one place on each node.
    2. No such device anywhere: every node whose host could hold it and that allows CPU runners.
    3. Nodes that are merely away keep their places: a silent agent costs no copy.
    4. A model that cannot be planned now keeps what it has.
    """
    if not can_be_planned(model):
        return tuple(
            f"{runner.node}/{runner.claim.devices[0][0]}" if runner.claim.devices else runner.node
            for runner in book.live(model.key)
        )
    wish = Wish(model, Want.COPY, book.state.now)
    nodes = [
        node
        for _, node in sorted(book.nodes.items())
        if (no := refuse_node(book, node, wish)) is None or no.reason not in HARD
    ]
    found: list[str] = []
    for node in nodes:
        sets = [candidate.devices for candidate in gpu_candidates(book, node, wish)]
        single = sorted({devices[0] for devices in sets if len(devices) == 1})
        found += [f"{node.name}/{uuid}" for uuid in single] or [node.name] * bool(sets)
    if found:
        return tuple(found)
    return tuple(
        node.name
        for node in nodes
        if any(holds_emptied(book.at(node.name), (), c.need) for c in cpu_candidates(node, wish))
    )
