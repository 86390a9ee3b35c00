"""On which places is a model to have a runner, each by name, and on which has it none?"""

from collections.abc import Iterable

from berth.planner.book import Book
from berth.planner.state import HOST, Model, Runner

MOST_COPIES_AT_ONCE = 64
"""Copies of one model that are looked for in one pass; the rest follow in the next ones."""


def targets(book: Book, model: Model) -> tuple[str, ...]:
    """``pinTo`` of a pinned model, every device of a ``PerDevice`` one; empty: any place will do.

    A target is a node, ``node/device`` (``cuda:N`` or a UUID), or a UUID.
    """
    if model.pinned and model.pin_to:
        return model.pin_to
    return book.spread.get(model.key, ())


def free_targets(book: Book, model: Model, live: Iterable[Runner]) -> list[str]:
    """The targets without a runner. Of an unpinned model only those that may have room just now:
    its copies take from nobody, and that one does not fit is no news."""
    standing = list(live)
    free = [
        target
        for target in targets(book, model)
        if not any(stands_on(book, runner, target) for runner in standing)
    ]
    if not model.pinned:
        free = [target for target in free if _may_have_room(book, model, target)]
    return free[:MOST_COPIES_AT_ONCE]


def strays(book: Book, model: Model, live: Iterable[Runner]) -> list[Runner]:
    """Runners that stand on none of the model's targets; none where any place will do."""
    wanted = targets(book, model)
    if not wanted:
        return []
    return [r for r in live if not any(stands_on(book, r, target) for target in wanted)]


def target_of(book: Book, model: Model, runner: Runner) -> str:
    """The target that the runner stands on; empty where there is none."""
    return next((t for t in targets(book, model) if stands_on(book, runner, t)), "")


def stands_on(book: Book, runner: Runner, target: str) -> bool:
    """Whether a runner is on a node, ``node/device`` or device that a target names."""
    node = book.nodes.get(runner.node)
    used = {uuid for uuid, _ in runner.claim.devices}
    index = {d.uuid: f"cuda:{d.index}" for d in node.devices} if node else {}
    spelled = {runner.node} | used
    spelled |= {f"{runner.node}/{uuid}" for uuid in used}
    spelled |= {f"{runner.node}/{index[uuid]}" for uuid in used if uuid in index}
    return target in spelled


def _may_have_room(book: Book, model: Model, target: str) -> bool:
    name, _, uuid = target.partition("/")
    place = book.at(name)
    if not uuid or uuid in place.unified:
        return place.later(HOST) >= min(need.host for need in model.needs)
    least = min((need.gpus[0] for need in model.needs if len(need.gpus) == 1), default=0)
    return place.later(uuid) >= least
