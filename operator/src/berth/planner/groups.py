"""Which nodes do the members of a group get? All of them, or none.

A model that one node cannot hold runs on several, the same amount on each. A group has one runner
that counts (its head); the others are parts of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from berth.planner.actions import Place, Refuse, Seat
from berth.planner.amounts import amounts, is_here
from berth.planner.book import Book, short_name
from berth.planner.candidates import HARD, Candidate, claim_of, homes_of
from berth.planner.eviction import dearest, plan_victims
from berth.planner.search import Search, disk_allows, left_over, open_candidates_on
from berth.planner.state import Runner
from berth.planner.wishes import Want, Wish
from berth.reasons import Reason
from berth.units import show_bytes


@dataclass(frozen=True)
class Group:
    """Places for every member, the head's first, with what has to give way for all of them."""

    members: tuple[Candidate, ...]
    victims: tuple[Runner, ...] = ()

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The places of the members after the head."""
        return tuple(Seat(Place(one.node, one.devices), claim_of(one)) for one in self.members[1:])


@dataclass(frozen=True)
class _Chair:
    """The best place of one node for one member, with its price."""

    candidate: Candidate
    price: tuple[Any, ...]
    victims: tuple[Runner, ...] = ()


def sizes_of(book: Book, wish: Wish) -> tuple[int, ...]:
    """Over how many nodes the wish may be placed, the fewest first; files that were fetched decide."""
    if wish.prepared is not None:
        return (len(book.whole(wish.prepared)),)
    return tuple(sorted({need.hosts for need in wish.model.needs}))


def of_size(wish: Wish, hosts: int) -> Wish:
    """The wish with only those ways to run its model that take so many nodes."""
    if all(need.hosts == hosts for need in wish.model.needs):
        return wish
    ways = tuple(need for need in wish.model.needs if need.hosts == hosts)
    return replace(wish, model=replace(wish.model, needs=ways))


def plan_group(book: Book, search: Search, hosts: int) -> Group | None:
    """Places for all ``hosts`` members of one group, each on a node of its own; nothing: no victim.

    1. Every member has the same way to run, the same amount on as many devices.
    2. Nodes where it is free now, then where room is coming, then the cheapest sets of victims; each
       with the files there before files to fetch, the tightest fit first, by name.
    3. Fewer nodes than members have room, or could have it: nobody is touched.
    4. The head is on the first of them; a group whose files were fetched keeps its order.
    """
    prepared = search.wish.prepared
    for need in search.wish.model.needs:
        chairs = sorted(_chairs(book, search, need.variant), key=lambda chair: chair.price)
        if len(chairs) >= hosts:
            chosen = chairs[:hosts]
            if prepared is not None:
                order = homes_of(book, prepared)
                chosen.sort(key=lambda chair: order.index(chair.candidate.node))
            victims = {v.uid: v for chair in chosen for v in chair.victims}
            return Group(tuple(c.candidate for c in chosen), tuple(victims.values()))
    return None


def refuse_group(book: Book, search: Search, hosts: int) -> Refuse | None:
    """Nodes that could hold a member are fewer than its members, whoever leaves: final, in numbers."""
    wish = search.wish
    able = [
        name
        for name in search.eligible.nodes
        if next(open_candidates_on(book, search, name), None) is not None
    ]
    if len(able) >= hosts or any(no.reason not in HARD for no in search.eligible.refused):
        return None
    need = wish.model.needs[0]
    size = show_bytes(sum(need.gpus) or need.host)
    message = (
        f"model {short_name(wish.model.key)} needs {hosts} nodes with {size} on each;"
        f" {len(able)} could hold that"
    )
    return Refuse(wish.model.key, Reason.NEVER_FITS, message, final=True)


def _chairs(book: Book, search: Search, variant: str) -> Iterator[_Chair]:
    for name in search.eligible.nodes:
        if not disk_allows(book, search.wish, name):
            continue
        found = [
            chair
            for candidate in open_candidates_on(book, search, name)
            if candidate.need.variant == variant
            and (chair := _chair(book, search.wish, candidate)) is not None
        ]
        if found:
            yield min(found, key=lambda chair: chair.price)


def _chair(book: Book, wish: Wish, candidate: Candidate) -> _Chair | None:
    place = book.at(candidate.node)
    takes = amounts(place.node, claim_of(candidate), place.unified)
    away = wish.prepared is None and not is_here(wish.model, place.node)
    rest = (away, left_over(book, candidate, takes), candidate.node, candidate.devices)
    lacks = place.lacks(takes)
    if not lacks:
        return _Chair(candidate, (0 if place.holds_now(takes) else 1, (), *rest))
    if wish.want in (Want.COPY, Want.AUTOLOAD, Want.BEGUN):
        return None
    victims = plan_victims(book, place, lacks, wish)
    if victims is None:
        return None
    return _Chair(candidate, (2, dearest(book, victims), *rest), victims)
