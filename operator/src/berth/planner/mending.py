"""What of reservations that lack their room: more victims, or another place?"""

from berth.planner.actions import Stop
from berth.planner.amounts import Amounts
from berth.planner.book import Book
from berth.planner.drains import is_admitted
from berth.planner.eviction import drain_victims, plan_cap_victims, plan_victims
from berth.planner.state import Runner, Stage
from berth.planner.wishes import wish_for
from berth.reasons import Reason


def reservations(book: Book) -> list[Runner]:
    """The reservations that still wait for their admission, the youngest first."""
    reserved = [
        runner
        for runner in book.state.runners
        if runner.stage is Stage.RESERVED and not runner.pod_exists and not runner.part_of
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
    shorts = [(book.at(m.node), _short(book, m)) for m in book.whole(runner)]
    policy = place.node.policy
    over_cap = 0 < policy.max_runners < book.group_size(policy.name)
    if not (any(short for _, short in shorts) or over_cap) or is_admitted(book, runner):
        return
    if any(not where.loading.isdisjoint(short) for where, short in shorts):
        return
    wish, victims = wish_for(book, model), list[Runner]()
    for where, short in shorts:
        found = plan_victims(book, where, short, wish) if short else ()
        if found is None:
            book.decide(runner, Stop(runner.uid, Reason.BUSY))
            return
        victims += found
    extra = plan_cap_victims(book, place, wish, tuple(victims), newcomers=0)
    if extra is None:
        book.decide(runner, Stop(runner.uid, Reason.BUSY))
    else:
        drain_victims(book, (*victims, *extra), model.key)


def _short(book: Book, runner: Runner) -> Amounts:
    """What its place lacks even once all that is leaving has left."""
    place = book.at(runner.node)
    held = book.takes(runner, place.unified)
    return {d: -place.later(d) for d, size in held.items() if size > 0 and place.later(d) < 0}
