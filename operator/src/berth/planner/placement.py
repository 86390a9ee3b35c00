"""Where does a wanted model go, who makes room for it, or why does it go nowhere now?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from berth.planner.actions import Drain, Place, Prepare, Refuse, Reserve, Seat, Stop, Wait
from berth.planner.amounts import Amounts, amounts, is_here
from berth.planner.book import Book
from berth.planner.candidates import Candidate, claim_of
from berth.planner.eviction import (
    Rank,
    cheapest_first,
    dearest,
    drain_victims,
    plan_cap_victims,
    plan_victims,
)
from berth.planner.groups import of_size, plan_group, refuse_group, sizes_of
from berth.planner.refusals import MOST_NODES, pinned_in_the_way, plan_refusal
from berth.planner.restarts import backoff_s
from berth.planner.search import (
    Search,
    candidates_on,
    disk_allows,
    left_over,
    may_hold,
    nodes_to_try,
    open_candidates_on,
    plan_search,
    roomiest,
)
from berth.planner.state import HOST, Runner
from berth.planner.turns import note_autoload, waits_for_turn
from berth.planner.wishes import Want, Wish
from berth.reasons import Reason
from berth.units import show_seconds

NOW, COMING, VICTIMS, LATER = 0, 1, 2, 3
"""How a place can be had: free, once what is leaving has left, by victims, some other time."""


@dataclass(frozen=True)
class Offer:
    """A place that can be had, with its price."""

    candidate: Candidate
    takes: Amounts
    how: int
    price: tuple[Any, ...]
    victims: tuple[Runner, ...] = ()
    seats: tuple[Seat, ...] = ()
    """Of the other members, where it is a group."""


def plan_placement(book: Book, wish: Wish) -> None:
    """Give the wish its place, or say why not.

    1. A model that failed waits for its back-off, or for the user.
    2. A place that is free now, or will be once what is leaving has left: nobody is drained.
    3. Else the place whose complete set of victims is the cheapest.
    4. Files that are not there are fetched first: the Runner is prepared and touches nobody.
    5. Files are missing and every place is taken just now: they are fetched meanwhile.
    6. Else a refusal with the numbers of each place; final where no wait will help. Who has waited
       beyond the fairness window has a place kept for it meanwhile (``plan_keeping``).
    """
    if refuse_restart(book, wish) or waits_for_turn(book, wish):
        return
    sizes = sizes_of(book, wish) or (1,)
    for hosts in sizes:
        search = plan_search(book, of_size(wish, hosts))
        offer = _offer(book, search, hosts)
        if offer is not None:
            _take(book, wish, offer)
            return
    if wish.want is Want.AUTOLOAD and wish.prepared is None and not book.autoload_names(wish.model):
        return  # All that fit are loaded; that this one does not is no news.
    refusal = _refusal(book, search, sizes[-1])
    if wish.prepared is not None and plan_giving_up(book, wish.prepared, wish, refusal):
        return
    if wish.overdue:
        plan_keeping(book, plan_search(book, wish))
    # A model that has a runner is never told to be beyond help for want of another one.
    has_place = book.live(wish.model.key) or wish.model.key in book.placed
    book.refuse(replace(refusal, final=refusal.final and not has_place))


def _offer(book: Book, search: Search, hosts: int) -> Offer | None:
    if hosts > 1:
        return _group_offer(book, search, hosts)
    offer = plan_free_offer(book, search) or plan_victim_offer(book, search)
    if offer is None and search.wish.prepared is None:
        offer = _later_offer(book, search)
    return offer


def _refusal(book: Book, search: Search, hosts: int) -> Refuse:
    """Of the widest way to run it, for none that takes fewer nodes has found a place either."""
    refused = refuse_group(book, search, hosts) if hosts > 1 else None
    return refused or plan_refusal(book, search)


def _group_offer(book: Book, search: Search, hosts: int) -> Offer | None:
    """A group is planned anew each time, also once its files are there: on all of its nodes or none."""
    group = plan_group(book, search, hosts)
    if group is None:
        return None
    head = group.members[0]
    return Offer(head, takes_of(book, head), VICTIMS, (), group.victims, group.seats)


def plan_giving_up(book: Book, prepared: Runner, wish: Wish, refusal: Refuse) -> bool:
    """Whether a runner whose files are there is given up; the files stay on the node.

    1. Nobody wants it any more, and its place is not free.
    2. Its node will never do, or not for a while: another one may.
    """
    if wish.want is Want.BEGUN:
        book.decide(prepared, Stop(prepared.uid, Reason.IDLE))
        return True
    if refusal.final or refusal.reason in (Reason.EXCLUDED, Reason.NO_AGENT):
        book.decide(prepared, Stop(prepared.uid, refusal.reason))
        return True
    return False


def refuse_restart(book: Book, wish: Wish) -> bool:
    """Whether the model's failures forbid a try now; notes why.

    1. A terminal failure: until the user changes something; told as final.
    2. A back-off that runs: until it ends.
    """
    model, restarts = wish.model, wish.model.restarts
    name, reason = model.key.rpartition("/")[2], restarts.reason or Reason.CRASHED
    if restarts.terminal:
        message = restarts.message or f"model {name} cannot start: {reason}"
        book.refuse(Refuse(model.key, reason, message, final=True))
        return True
    if restarts.next_retry is not None and restarts.next_retry > book.state.now:
        told = f": {restarts.message}" if restarts.message else ""
        times = "once" if restarts.count == 1 else f"{restarts.count} times in a row"
        # The pause, not what is left of it: a message that counts down would be written every pass.
        pause = show_seconds(backoff_s(restarts.count))
        message = f"model {name} failed {times} ({reason}){told}; next try after {pause}"
        book.refuse(Wait(model.key, reason, message, until=restarts.next_retry))
        return True
    return False


def plan_free_offer(book: Book, search: Search) -> Offer | None:
    """The best place that needs no victim.

    1. Free now before free once what is leaving has left.
    2. Files there before files to fetch.
    3. The better way to run it (fewer layers on the host).
    4. Measured places before unsure ones, then the tightest fit, then node and device by name.

    The search ends where no node that is left can beat the best place so far.
    """
    best: Offer | None = None
    wish = search.wish
    for name, left in nodes_to_try(book, search):
        away = not _has_files(book, wish, name)
        bound = (NOW, away, 0, False, left or 0, name)
        if best is not None and bound > best.price[:6]:
            if left is not None:
                break
            continue
        place = book.at(name)
        if not may_hold(search, place) or not _cap_allows(book, name):
            continue
        if not disk_allows(book, wish, name):
            continue
        for candidate in open_candidates_on(book, search, name):
            offer = _free_offer(book, candidate, away)
            if offer is not None and (best is None or offer.price < best.price):
                best = offer
    return best


def _free_offer(book: Book, candidate: Candidate, away: bool) -> Offer | None:
    place, takes = book.at(candidate.node), takes_of(book, candidate)
    if place.lacks(takes):
        return None
    how = NOW if place.holds_now(takes) else COMING
    left = left_over(book, candidate, takes)
    unsure = any(dim in place.unsure for dim in takes)
    price = (how, away, candidate.variant, unsure, left, candidate.node, candidate.devices)
    return Offer(candidate, takes, how, price)


def plan_victim_offer(book: Book, search: Search) -> Offer | None:
    """The place with the cheapest complete set of victims, or nothing: then nobody is touched.

    1. Sets without a kept-loaded member first.
    2. Files there before files to fetch.
    3. The set whose dearest member is the cheapest (``Rank``), then the next dearest …; a set
       that another one begins with is the cheaper.
    4. Then as among free places.

    The search ends where the cheapest runner that is left is dearer than the best set so far.
    """
    best: Offer | None = None
    wish = search.wish
    if wish.want in (Want.COPY, Want.AUTOLOAD, Want.BEGUN):
        return None
    for name, least in _nodes_with_victims(book, search):
        if best is not None and least is not None:
            # One victim can make room on two nodes (a cap spans them): then the rest decides.
            if (least.worth, False, (least,)) > best.price[:3]:
                break
            if (least.worth, not _has_files(book, wish, name), (least,)) > best.price[:3]:
                continue
        if not disk_allows(book, wish, name):
            continue
        for candidate in open_candidates_on(book, search, name):
            offer = _victim_offer(book, wish, candidate)
            if offer is not None and (best is None or offer.price < best.price):
                best = offer
    return best


def _nodes_with_victims(book: Book, search: Search) -> Iterator[tuple[str, Rank | None]]:
    """Nodes where room may be made: by the runner that is replaced, under a cap, by victims."""
    names, old = search.eligible.nodes, search.wish.replaces
    capped = [name for name in names if book.nodes[name].policy.max_runners > 0]
    first = dict.fromkeys([old.node] if old is not None and old.node in names else [])
    first |= dict.fromkeys(name for name in capped if may_hold(search, book.at(name)))
    yield from ((name, None) for name in first)
    for name, least in cheapest_first(book, search.wish, names):
        if name not in first:
            yield name, least


def _victim_offer(book: Book, wish: Wish, candidate: Candidate) -> Offer | None:
    place, takes = book.at(candidate.node), takes_of(book, candidate)
    victims = plan_victims(book, place, place.lacks(takes), wish)
    extra = None if victims is None else plan_cap_victims(book, place, wish, victims)
    if victims is None or extra is None:
        return None
    ranks = dearest(book, victims + extra)
    worst = ranks[0].worth if ranks else 0
    left = left_over(book, candidate, takes)
    away = not _has_files(book, wish, candidate.node)
    price = (worst, away, ranks, candidate.variant, left, candidate.node, candidate.devices)
    return Offer(candidate, takes, VICTIMS, price, victims + extra)


def plan_keeping(book: Book, search: Search) -> None:
    """Keep a place for who has waited beyond the fairness window, until it is free.

    1. Only a place that would do once every runner of ours that may ever give way has gone:
       nothing is kept empty for what strangers or pinned models hold.
    2. The one that lacks least; then by name. Only others who are overdue may still take it.
    """
    best: tuple[int, str, tuple[str, ...]] | None = None
    for count, name in enumerate(roomiest(book, search)):
        if count >= MOST_NODES and best is not None:
            break
        for candidate in candidates_on(book, search, name):
            lacks = book.at(name).lacks(takes_of(book, candidate))
            if _may_ever_be_had(book, name, lacks):
                found = (sum(lacks.values()), name, candidate.devices)
                best = found if best is None else min(best, found)
    if best is not None:
        for dim in best[2] or (HOST,):
            book.kept_for[best[1], dim] = search.wish.model.key


def _may_ever_be_had(book: Book, name: str, lacks: Amounts) -> bool:
    held = [
        book.takes(runner, book.at(name).unified)
        for runner in book.by_node.get(name, ())
        if not book.is_leaving(runner) and not book.is_pinned(runner)
    ]
    return all(short <= sum(one.get(dim, 0) for one in held) for dim, short in lacks.items())


def _later_offer(book: Book, search: Search) -> Offer | None:
    """Where files could be fetched while every place is taken: one not pinned full, by name."""
    wish = search.wish
    if wish.want is not Want.WAITING or not wish.model.files:
        return None
    for name in search.eligible.nodes:
        if _has_files(book, wish, name) or not disk_allows(book, wish, name):
            continue
        for candidate in open_candidates_on(book, search, name):
            takes = takes_of(book, candidate)
            if not pinned_in_the_way(book, candidate, takes):
                return Offer(candidate, takes, LATER, ())
    return None


def takes_of(book: Book, candidate: Candidate) -> Amounts:
    """What a runner on the place would take of its node."""
    place = book.at(candidate.node)
    return amounts(place.node, claim_of(candidate), place.unified)


def _cap_allows(book: Book, name: str) -> bool:
    policy = book.nodes[name].policy
    return policy.max_runners <= 0 or book.group_size(policy.name) < policy.max_runners


def _has_files(book: Book, wish: Wish, name: str) -> bool:
    return wish.prepared is not None or is_here(wish.model, book.nodes[name])


def _take(book: Book, wish: Wish, offer: Offer) -> None:
    """Turn the offer into actions: the reservation first, then its victims are asked to drain."""
    candidate = offer.candidate
    place = Place(candidate.node, candidate.devices)
    claim, key = claim_of(candidate), wish.model.key
    homes = [candidate.node, *(seat.place.node for seat in offer.seats)]
    if not all(_has_files(book, wish, name) for name in homes):
        ordinal, attempt = plan_name(book, wish)
        book.place(Prepare(key, place, claim, candidate.need, ordinal, attempt, offer.seats))
        note_autoload(book, key, candidate.node)
        return
    if wish.prepared is not None:
        ordinal, attempt, uid = wish.prepared.ordinal, wish.prepared.attempt, wish.prepared.uid
    else:
        (ordinal, attempt), uid = plan_name(book, wish), ""
    book.place(Reserve(key, place, claim, candidate.need, ordinal, attempt, uid, offer.seats))
    note_autoload(book, key, candidate.node)
    drain_victims(book, offer.victims, key)
    _replace(book, wish, offer)


def _replace(book: Book, wish: Wish, offer: Offer) -> None:
    """The runner with old settings gives way at once where its room is needed; else it goes on until
    the new one is up."""
    old = wish.replaces
    if old is None:
        return
    book.roll(wish.model, [old])
    place = book.at(offer.candidate.node)
    cap = place.node.policy.max_runners
    over_cap = cap > 0 and book.group_size(place.node.policy.name) > cap
    if over_cap or any(_is_short(book, old, seat) for seat in _seats(offer)):
        deadline = book.state.now + wish.model.drain_timeout_s
        book.decide(old, Drain(old.uid, Reason.REPLACED, deadline, newcomer=wish.model.key))


def _seats(offer: Offer) -> tuple[Seat, ...]:
    """The places of all members; of one runner alone, its own."""
    one = offer.candidate
    return (Seat(Place(one.node, one.devices), claim_of(one)), *offer.seats)


def _is_short(book: Book, old: Runner, seat: Seat) -> bool:
    """Whether the place lacks room while the old runner, which is on this node too, still stands."""
    if all(member.node != seat.place.node for member in book.whole(old)):
        return False
    place = book.at(seat.place.node)
    return any(place.later(dim) < 0 for dim in amounts(place.node, seat.claim, place.unified))


def plan_name(book: Book, wish: Wish) -> tuple[int, int]:
    """Ordinal and attempt of a new runner: no name that a runner of the model still has.

    1. The ordinal of the runner that it replaces, else the smallest that no staying one has.
    2. An attempt above every one seen with that ordinal, and not below the count of failures.
    """
    mine = book.by_model.get(wish.model.key, [])
    taken = {r.ordinal for r in book.live(wish.model.key)}
    made = book.placed.get(wish.model.key, [])
    taken |= {action.ordinal for action in made}
    ordinal = next(n for n in range(len(taken) + 1) if n not in taken)
    if wish.replaces is not None:
        ordinal = wish.replaces.ordinal
    attempts = [r.attempt for r in mine if r.ordinal == ordinal]
    attempts += [a.attempt for a in made if a.ordinal == ordinal]
    return ordinal, max([*(n + 1 for n in attempts), wish.model.restarts.count])
