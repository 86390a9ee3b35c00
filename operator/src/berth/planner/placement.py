"""Where does a wanted model go, who makes room for it, or why does it go nowhere now?"""

from dataclasses import dataclass

from berth.planner.actions import Drain, Place, Prepare, Refuse, Reserve, Stop, Wait
from berth.planner.book import Amounts, Book, amounts, is_here, missing_bytes
from berth.planner.candidates import (
    Candidate,
    claim_of,
    cpu_candidates,
    gpu_candidates,
    holds_emptied,
    refuse_node,
)
from berth.planner.drains import is_admitted
from berth.planner.eviction import dearest, plan_cap_victims, plan_victims
from berth.planner.refusals import pinned_in_the_way, plan_refusal
from berth.planner.state import Runner, Stage
from berth.planner.wishes import Want, Wish, wish_for
from berth.reasons import Reason

NOW, COMING, VICTIMS, LATER = 0, 1, 2, 3
"""How a place can be had: free, once what is leaving has left, by victims, some other time."""


@dataclass(frozen=True)
class Offer:
    """A place that can be had, with its price."""

    candidate: Candidate
    takes: Amounts
    how: int
    price: tuple[object, ...]
    victims: tuple[Runner, ...] = ()


def plan_placement(book: Book, wish: Wish) -> None:
    """Give the wish its place, or say why not.

    1. A model that failed waits for its back-off, or for the user.
    2. A place that is free now, or will be once what is leaving has left: nobody is drained.
    3. Else the place whose complete set of victims is the cheapest.
    4. Files that are not there are fetched first: the Runner is prepared and touches nobody.
    5. Files are missing and every place is taken just now: they are fetched meanwhile.
    6. Else a refusal with the numbers of each place; final where no wait will help.
    """
    if refuse_restart(book, wish) or waits_for_turn(book, wish):
        return
    candidates = plan_candidates(book, wish)
    offer = plan_free_offer(book, wish, candidates) or plan_victim_offer(book, wish, candidates)
    if offer is None and wish.prepared is None:
        offer = _later_offer(book, wish, candidates)
    if offer is None:
        book.refuse(plan_refusal(book, wish, candidates))
        return
    _take(book, wish, offer)


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
        left = restarts.next_retry - book.state.now
        told = f": {restarts.message}" if restarts.message else ""
        times = "once" if restarts.count == 1 else f"{restarts.count} times in a row"
        message = f"model {name} failed {times} ({reason}){told}; next try in {left:.0f} s"
        book.refuse(Wait(model.key, reason, message, until=restarts.next_retry))
        return True
    return False


def waits_for_turn(book: Book, wish: Wish) -> bool:
    """Whether another runner on the node of the one to be replaced is being replaced just now."""
    return wish.replaces is not None and wish.replaces.node in book.rolling


def plan_candidates(book: Book, wish: Wish) -> list[Candidate]:
    """Every place that the model may use and that could hold it emptied.

    The CPU only where no GPU that the model may use could hold it, even emptied: a busy GPU means
    evict or wait (D1). GPUs of nodes that are merely away just now count as such.
    """
    nodes = [node for node in book.state.nodes if _may_use(book, wish, node.name)]
    found = [c for node in nodes for c in gpu_candidates(book, node, wish)]
    if found or _gpu_away(book, wish):
        return found
    return [
        candidate
        for node in nodes
        for candidate in cpu_candidates(node, wish)
        if holds_emptied(book.at(node.name), (), candidate.need)
    ]


def _may_use(book: Book, wish: Wish, name: str) -> bool:
    return refuse_node(book, book.nodes[name], wish) is None


def _gpu_away(book: Book, wish: Wish) -> bool:
    if not any(need.gpus for need in wish.model.needs) or wish.prepared is not None:
        return False
    for node in book.state.nodes:
        no = refuse_node(book, node, wish)
        if no is None or no.reason not in (Reason.HELD, Reason.NODE_NOT_READY, Reason.NO_AGENT):
            continue
        if next(gpu_candidates(book, node, wish), None) is not None:
            return True
    return False


def plan_free_offer(book: Book, wish: Wish, candidates: list[Candidate]) -> Offer | None:
    """The best place that needs no victim.

    1. Free now before free once what is leaving has left.
    2. Files there before files to fetch.
    3. The better way to run it (fewer layers on the host).
    4. Measured places before unsure ones, then the tightest fit, then node and device by name.
    """
    best: Offer | None = None
    for candidate in candidates:
        place = book.at(candidate.node)
        takes = amounts(place.node, claim_of(candidate), place.unified)
        if place.lacks(takes) or not _cap_allows(book, wish, candidate):
            continue
        if not _disk_allows(book, wish, candidate):
            continue
        how = NOW if place.holds_now(takes) else COMING
        left = _left_over(book, candidate, takes)
        unsure = any(dim in place.unsure for dim in takes)
        here = _has_files(book, wish, candidate)
        price = (how, not here, candidate.variant, unsure, left, candidate.node, candidate.devices)
        if best is None or price < best.price:
            best = Offer(candidate, takes, how, price)
    return best


def plan_victim_offer(book: Book, wish: Wish, candidates: list[Candidate]) -> Offer | None:
    """The place with the cheapest complete set of victims, or nothing: then nobody is touched.

    1. Sets without a kept-loaded member first.
    2. Files there before files to fetch.
    3. The set whose dearest member is the cheapest (``Rank``), then the next dearest …; a set
       that another one begins with is the cheaper.
    4. Then as among free places.
    """
    best: Offer | None = None
    if wish.want in (Want.COPY, Want.AUTOLOAD, Want.BEGUN):
        return None
    for candidate in candidates:
        place = book.at(candidate.node)
        takes = amounts(place.node, claim_of(candidate), place.unified)
        if not _disk_allows(book, wish, candidate):
            continue
        victims = plan_victims(book, place, place.lacks(takes), wish)
        extra = None if victims is None else plan_cap_victims(book, place, wish, victims)
        if victims is None or extra is None:
            continue
        ranks = dearest(book, victims + extra)
        worst = ranks[0].worth if ranks else 0
        here = _has_files(book, wish, candidate)
        left = _left_over(book, candidate, takes)
        price = (worst, not here, ranks, candidate.variant, left, candidate.node, candidate.devices)
        if best is None or price < best.price:
            best = Offer(candidate, takes, VICTIMS, price, victims + extra)
    return best


def _later_offer(book: Book, wish: Wish, candidates: list[Candidate]) -> Offer | None:
    """Where files could be fetched while every place is taken: one not pinned full, by name."""
    for candidate in sorted(candidates, key=lambda c: (c.variant, c.node, c.devices)):
        place = book.at(candidate.node)
        takes = amounts(place.node, claim_of(candidate), place.unified)
        if _has_files(book, wish, candidate) or not _disk_allows(book, wish, candidate):
            continue
        if wish.want is not Want.WAITING or pinned_in_the_way(book, candidate, takes):
            continue
        return Offer(candidate, takes, LATER, ())
    return None


def _left_over(book: Book, candidate: Candidate, takes: Amounts) -> int:
    place = book.at(candidate.node)
    dims = [uuid for uuid in candidate.devices if uuid not in place.unified] or ["host"]
    return sum(place.later(dim) - takes.get(dim, 0) for dim in dims)


def _cap_allows(book: Book, wish: Wish, candidate: Candidate) -> bool:
    policy = book.nodes[candidate.node].policy
    if policy.max_runners <= 0:
        return True
    return book.group_size(policy.name) < policy.max_runners


def _has_files(book: Book, wish: Wish, candidate: Candidate) -> bool:
    return wish.prepared is not None or is_here(wish.model, book.nodes[candidate.node])


def _disk_allows(book: Book, wish: Wish, candidate: Candidate) -> bool:
    if wish.prepared is not None:
        return True
    place = book.at(candidate.node)
    return missing_bytes(wish.model, place.node) <= max(0, place.disk)


def _take(book: Book, wish: Wish, offer: Offer) -> None:
    """Turn the offer into actions: the reservation first, then its victims are asked to drain."""
    candidate = offer.candidate
    place = Place(candidate.node, candidate.devices)
    claim, key = claim_of(candidate), wish.model.key
    if not _has_files(book, wish, candidate):
        ordinal, attempt = plan_name(book, wish)
        book.place(Prepare(key, place, claim, candidate.need, ordinal, attempt))
        return
    if wish.prepared is not None:
        ordinal, attempt, uid = wish.prepared.ordinal, wish.prepared.attempt, wish.prepared.uid
    else:
        (ordinal, attempt), uid = plan_name(book, wish), ""
    book.place(Reserve(key, place, claim, candidate.need, ordinal, attempt, runner=uid))
    _drain_victims(book, offer.victims, key)
    _replace(book, wish, offer)


def reservations(book: Book) -> list[Runner]:
    """The reservations that still wait for their admission, the youngest first."""
    reserved = [
        runner
        for runner in book.state.runners
        if runner.stage is Stage.RESERVED and not runner.pod_exists
    ]
    return sorted(reserved, key=lambda r: (-(r.reserved_at or r.created), r.uid))


def plan_mending(book: Book, runner: Runner) -> None:
    """Make good what a reservation lacks: its victims were spared, strangers took the memory, or a
    plan was applied in part.

    1. An admitted one is on its way and left alone; the youngest of several gives way first.
    2. Its place is short even once all that is leaving has left: more victims, by the same rules.
    3. No set is enough: the reservation is given up, and the model is planned again.
    4. A load that cannot be measured yet may only look like a shortage: wait for it.
    """
    model = book.models.get(runner.model)
    if model is None or book.is_leaving(runner) or book.is_lost(runner):
        return
    place = book.at(runner.node)
    held = book.takes(runner, place.unified)
    short = {d: -place.later(d) for d, size in held.items() if size > 0 and place.later(d) < 0}
    policy = place.node.policy
    over_cap = 0 < policy.max_runners < book.group_size(policy.name)
    if not (short or over_cap) or is_admitted(book, runner):
        return
    if not place.loading.isdisjoint(short):
        return
    wish = wish_for(book, model)
    victims = plan_victims(book, place, short, wish)
    extra = None if victims is None else plan_cap_victims(book, place, wish, victims, newcomers=0)
    if victims is None or extra is None:
        book.decide(runner, Stop(runner.uid, Reason.BUSY))
    else:
        _drain_victims(book, victims + extra, model.key)


def _drain_victims(book: Book, victims: tuple[Runner, ...], newcomer: str) -> None:
    for victim in victims:
        deadline = book.state.now + book.models[victim.model].drain_timeout_s
        book.decide(victim, Drain(victim.uid, Reason.MAKE_ROOM, deadline, newcomer=newcomer))


def _replace(book: Book, wish: Wish, offer: Offer) -> None:
    """The runner with old settings gives way at once where its room is needed; else it goes on until
    the new one is up."""
    old = wish.replaces
    if old is None:
        return
    book.rolling.add(old.node)
    place = book.at(offer.candidate.node)
    same_node = old.node == offer.candidate.node
    cap = place.node.policy.max_runners
    over_cap = cap > 0 and book.group_size(place.node.policy.name) > cap
    if over_cap or (same_node and any(place.later(dim) < 0 for dim in offer.takes)):
        deadline = book.state.now + wish.model.drain_timeout_s
        book.decide(old, Drain(old.uid, Reason.REPLACED, deadline, newcomer=wish.model.key))


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
