"""Which places are worth a look for one wish? The same answer as looking at all, found with less work.

A pass over thousands of nodes repeats itself: many wishes may use the same nodes, and most nodes are
plainly too full or too dear. What is kept here lasts for one pass.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from berth.planner.actions import PlaceNo
from berth.planner.amounts import Amounts, NodeBook, is_here, missing_bytes
from berth.planner.book import Book
from berth.planner.candidates import (
    Candidate,
    cpu_candidates,
    gpu_candidates,
    holds_emptied,
    homes_of,
    refuse_node,
)
from berth.planner.state import HOST, Need
from berth.planner.turns import LAST, autoloading
from berth.planner.wishes import Want, Wish
from berth.reasons import Reason

AWAY = frozenset({Reason.HELD, Reason.NODE_NOT_READY, Reason.NO_AGENT})
"""Refusals of nodes that will be back as they are."""


@dataclass(frozen=True)
class Eligible:
    """The nodes that a wish may use now, by name, and why each other one is out of the question."""

    nodes: tuple[str, ...]
    names: frozenset[str]
    refused: tuple[PlaceNo, ...]


@dataclass(frozen=True)
class Search:
    """One wish, the nodes it may use, and whether it looks for GPUs or for CPUs."""

    wish: Wish
    eligible: Eligible
    on_gpu: bool
    least_gpu: int
    """No device with less is worth a look."""
    least_host: int
    exact: int | None = field(default=None)
    """The bytes on the one device, where there is one way to run it: then fits compare by number."""


def plan_search(book: Book, wish: Wish) -> Search:
    """Where to look for a place.

    1. Nodes that the wish may use now (``refuse_node``).
    2. GPUs where any that the model may use could hold it emptied, on nodes that are merely away
       included; else CPUs: a busy GPU means evict or wait, never the CPU (D1).
    """
    eligible = eligible_nodes(book, wish)
    gpus = [need for need in wish.model.needs if need.gpus]
    on_gpu = bool(gpus) and (
        _any_gpu(book, wish, eligible.nodes) or _gpu_away(book, wish, eligible)
    )
    chosen = gpus if on_gpu else [need for need in wish.model.needs if not need.gpus]
    single = len(chosen) == 1 and len(chosen[0].gpus) <= 1
    return Search(
        wish,
        eligible,
        on_gpu,
        least_gpu=min((_smallest_share(need) for need in chosen), default=0),
        least_host=min((int(need.host) for need in chosen), default=0),
        exact=_smallest_share(chosen[0]) if single and on_gpu else None,
    )


def _smallest_share(need: Need) -> int:
    return max(need.gpus, default=0)


def eligible_nodes(book: Book, wish: Wish) -> Eligible:
    """``refuse_node`` over all nodes, remembered for wishes that ask the same."""
    model = wish.model
    listed = (
        any(node.policy.models for node in book.state.nodes)
        if book.lists_models is None
        else (book.lists_models)
    )
    book.lists_models = listed
    key = (
        frozenset(model.node_selector.items()),
        model.tolerations,
        model.local_nodes,
        model.runs_code,
        model.restarts.excluded,
        wish.target,
        homes_of(book, wish.prepared) if wish.prepared is not None else (),
        model.key if listed else "",
        _autoload_key(book, wish),
    )
    known = book.eligible.get(key)
    if known is None:
        nos = [(name, refuse_node(book, book.nodes[name], wish)) for name in sorted(book.nodes)]
        names = tuple(name for name, no in nos if no is None)
        known = Eligible(
            names,
            frozenset(names),
            tuple(no for _, no in nos if no is not None),
        )
        book.eligible[key] = known
    return known


def _autoload_key(book: Book, wish: Wish) -> object:
    """What ``refuse_autoload`` answers by: the same for all that no policy names."""
    if wish.want is not Want.AUTOLOAD:
        return None
    is_named = book.autoload_names(wish.model) or book.load_position(wish.model) < LAST
    return wish.model.key if is_named else "", frozenset(autoloading(book))


def _any_gpu(book: Book, wish: Wish, nodes: tuple[str, ...]) -> bool:
    return any(next(gpu_candidates(book, book.nodes[name], wish), None) for name in nodes)


def _gpu_away(book: Book, wish: Wish, eligible: Eligible) -> bool:
    if wish.prepared is not None:
        return False
    away = tuple(no.node for no in eligible.refused if no.reason in AWAY)
    return _any_gpu(book, wish, away)


def candidates_on(book: Book, search: Search, name: str) -> Iterator[Candidate]:
    """The places of one node that could hold the model emptied."""
    node = book.nodes[name]
    if search.on_gpu:
        return gpu_candidates(book, node, search.wish)
    place = book.at(name)
    return (c for c in cpu_candidates(node, search.wish) if holds_emptied(place, (), c.need))


def open_candidates_on(book: Book, search: Search, name: str) -> Iterator[Candidate]:
    """Those of them that are not kept for another model."""
    found = candidates_on(book, search, name)
    if search.wish.overdue or not book.kept_for:
        return found
    return (candidate for candidate in found if not is_kept(book, candidate))


def all_candidates(book: Book, search: Search) -> Iterator[Candidate]:
    """The open places of every node, by the node's name."""
    for name in search.eligible.nodes:
        yield from open_candidates_on(book, search, name)


def is_kept(book: Book, candidate: Candidate) -> bool:
    """Whether the place is kept for a model that has waited beyond the fairness window."""
    dims = candidate.devices or (HOST,)
    return any((candidate.node, dim) in book.kept_for for dim in dims)


def nodes_to_try(book: Book, search: Search) -> Iterator[tuple[str, int | None]]:
    """Nodes for a place without victims; from where on each leaves more over than the one before,
    with what it leaves over at the least.

    Where one amount on one device is wanted: nodes that have the files before the others, among
    them the tightest device first, so that the search can end early. Else every node by name;
    unified boards always so.
    """
    names = search.eligible.nodes
    if search.exact is None:
        yield from ((name, None) for name in names)
        return
    model, prepared = search.wish.model, search.wish.prepared
    # Where it was prepared its files count as being everywhere: then fit alone decides.
    first = bool(model.files) and prepared is None
    here = {name for name in names if first and is_here(model, book.nodes[name])}
    for group in (here, search.eligible.names - here):
        yield from ((name, None) for name in book.unified_nodes if name in group)
        index = book.device_index()
        for size, name in index[bisect_left(index, (search.exact, "")) :] if group else ():
            if name in group:
                yield name, size - search.exact


def roomiest(book: Book, search: Search) -> Iterator[str]:
    """The eligible nodes, the one with the roomiest device (or host) first, each once."""
    names = search.eligible.nodes
    if not search.on_gpu:
        yield from sorted(names, key=lambda name: (-book.at(name).later(HOST), name))
        return
    told: set[str] = set()
    for _, name in reversed(book.device_index()):
        if name in search.eligible.names and name not in told:
            told.add(name)
            yield name
    yield from (name for name in names if name not in told)


def may_hold(search: Search, place: NodeBook) -> bool:
    """Whether the node is worth a closer look for a place without victims."""
    if place.later(HOST) < search.least_host:
        return False
    return not search.on_gpu or bool(place.unified) or place.widest() >= search.least_gpu


def disk_allows(book: Book, wish: Wish, name: str) -> bool:
    """Whether the node has the room for files that it lacks; where they were fetched nothing is asked."""
    if wish.prepared is not None or not wish.model.files:
        return True
    place = book.at(name)
    return missing_bytes(wish.model, place.node) <= max(0, place.disk)


def left_over(book: Book, candidate: Candidate, takes: Amounts) -> int:
    """Bytes that stay free on its devices (without any: on the host) once all that leaves has left."""
    place = book.at(candidate.node)
    dims = [uuid for uuid in candidate.devices if uuid not in place.unified] or [HOST]
    return sum(place.later(dim) - takes.get(dim, 0) for dim in dims)
