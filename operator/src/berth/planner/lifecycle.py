"""What becomes of each runner that exists: cleared away, stopped, started, or left alone?"""

from collections.abc import Callable

from berth.planner.actions import StartPod, Stop
from berth.planner.amounts import amounts
from berth.planner.book import Book
from berth.planner.drains import (
    is_admitted,
    plan_drain,
    plan_idle,
    plan_leave,
    plan_replaced,
    plan_scale_down,
)
from berth.planner.state import HOST, Model, Runner, Stage
from berth.planner.wishes import is_stale, limit, plan_target
from berth.reasons import Reason

KILL_GRACE_S = 1.0
"""Never 0: the API server would forget the pod while its container may still hold memory."""

StopRule = Callable[[Book, Runner], Stop | None]


def stop_failed(book: Book, runner: Runner) -> Stop | None:
    """A runner that ended is cleared away; its name and its bytes are free after that."""
    if runner.stage is not Stage.FAILED:
        return None
    # What is left of a group hangs: nothing is waited for.
    grace_s = KILL_GRACE_S if book.parts.get(runner.uid) else None
    return Stop(runner.uid, runner.exit_reason or Reason.CRASHED, grace_s)


def stop_lost(book: Book, runner: Runner) -> Stop | None:
    """A runner whose node is gone, or was not ready for a minute, is given up.

    The model may go elsewhere; a node that comes back ends what it still runs first.
    """
    node = book.nodes.get(runner.node)
    if node is not None and node.not_ready_since is not None and not node.ready:
        book.wake(node.not_ready_since + book.state.lost_after_s)
    grace_s = KILL_GRACE_S if book.parts.get(runner.uid) else None
    return Stop(runner.uid, Reason.NODE_LOST, grace_s) if book.is_lost(runner) else None


def stop_killed(book: Book, runner: Runner) -> Stop | None:
    """Killing by hand is a crash that somebody wished for: nothing is waited for."""
    return Stop(runner.uid, Reason.KILLED, grace_s=KILL_GRACE_S) if runner.kill else None


def stop_deleted_elsewhere(book: Book, runner: Runner) -> Stop | None:
    """Somebody else deletes the pod: it drains by itself, and its Runner goes with it."""
    return Stop(runner.uid, Reason.EVICTED) if runner.foreign_deletion else None


def stop_too_slow(book: Book, runner: Runner) -> Stop | None:
    """A load past its deadline, which the controller moves on while the load progresses."""
    if runner.stage is not Stage.STARTING or runner.load_deadline is None:
        return None
    book.wake(runner.load_deadline)
    if book.state.now < runner.load_deadline:
        return None
    return Stop(runner.uid, Reason.LOAD_TIMEOUT)


STOP_RULES: tuple[StopRule, ...] = (
    stop_deleted_elsewhere,
    stop_failed,
    stop_lost,
    stop_killed,
    stop_too_slow,
)


def plan_runner(book: Book, runner: Runner, model: Model | None) -> None:
    """Decide on one runner. The first rule that speaks wins.

    1. Already stopping: nothing more, but for a pod that somebody else deletes.
    2. Ended, lost, killed by hand, too slow (``STOP_RULES``).
    3. It has to go (``plan_leave``), or it is draining (``plan_drain``).
    4. Reserved: started, given up, or left waiting (``plan_start``).
    """
    if runner.uid in book.stopped or (
        runner.stage is Stage.STOPPING and not runner.foreign_deletion
    ):
        return
    for rule in STOP_RULES:
        stop = rule(book, runner)
        if stop is not None:
            book.decide(runner, stop)
            return
    action = plan_leave(book, runner, model) or plan_drain(book, runner, model)
    if action is not None:
        book.decide(runner, action)
    elif runner.stage is Stage.RESERVED and model is not None:
        plan_start(book, runner, model)


def plan_model_runners(book: Book, model: Model) -> None:
    """Decide on the runners of one model as a set: old settings, copies too many, idle ones."""
    plan_replaced(book, model)
    plan_scale_down(book, model)
    staying = [r for r in book.live(model.key) if r.stage is Stage.UP]
    up = len(staying)
    for runner in sorted(staying, key=lambda r: (-r.ordinal, r.uid)):
        drain = plan_idle(book, runner, model, up)
        if drain is not None:
            book.decide(runner, drain)
            up -= 1


def plan_start(book: Book, runner: Runner, model: Model) -> None:
    """What becomes of a reservation.

    1. Nobody wants the model any more and victims still drain for it: given up, they go on.
    2. Admitted: its pod is created, unless something must come first (``must_wait``).
    3. Refused by the agent for ``reserve_patience_s`` with nothing on its way: the place is
       given up (the controller leaves the node out for a minute), and another is looked for.
    """
    if runner.pod_exists or is_stale(model, runner):
        return
    if _is_in_vain(book, model):
        book.decide(runner, Stop(runner.uid, Reason.IDLE))
    elif is_admitted(book, runner):
        if must_wait(book, runner, model) is None:
            book.actions.append(StartPod(runner.uid))
            book.started.update(member.uid for member in book.whole(runner))
    elif _is_stuck(book, runner):
        book.decide(runner, Stop(runner.uid, runner.admission_refused or Reason.NO_AGENT))


def _is_in_vain(book: Book, model: Model) -> bool:
    if plan_target(book, model)[0] > 0:
        return False
    return any(
        not book.is_lost(r) and r.uid not in book.stopped for r in book.drains_for(model.key)
    )


def must_wait(book: Book, runner: Runner, model: Model) -> Reason | None:
    """What comes before an admitted runner's pod.

    1. The model's own pods that are leaving: never two beyond its maximum (C15).
    2. Another load on the same device, or on the host where it takes no device.
    3. The settle time of the place after the last runner there has gone.
    4. The cap: pods that are still there count until they are gone.
    """
    leaving = [r for r in book.leaving(model.key) if has_pod(r)]
    standing = [r for r in book.live(model.key) if has_pod(r)]
    if leaving and len(leaving) + len(standing) >= limit(book, model):
        return Reason.DRAINING
    whole = book.whole(runner)
    if any(_is_beside_a_load(book, member) for member in whole):
        return Reason.LOAD_IN_PROGRESS
    settled = max(_settles_until(book, member) for member in whole)
    if settled > book.state.now:
        book.wake(settled)
        return Reason.SETTLING
    policy = book.nodes[runner.node].policy
    if policy.max_runners > 0 and book.group_pods(policy.name) >= policy.max_runners:
        return Reason.CAP
    return None


def _is_beside_a_load(book: Book, runner: Runner) -> bool:
    return any(_shares(r, runner) and _is_starting(book, r) for r in book.by_node[runner.node])


def has_pod(runner: Runner) -> bool:
    """Whether the runner's pod exists, or must be taken to exist."""
    return runner.pod_exists or runner.stage in (Stage.STARTING, Stage.UP, Stage.STOPPING)


def _is_starting(book: Book, runner: Runner) -> bool:
    return runner.stage is Stage.STARTING or runner.uid in book.started


def _shares(other: Runner, runner: Runner) -> bool:
    if (other.part_of or other.uid) == (runner.part_of or runner.uid):
        return False
    mine = {uuid for uuid, _ in runner.claim.devices} or {HOST}
    theirs = {uuid for uuid, _ in other.claim.devices} or {HOST}
    return not mine.isdisjoint(theirs)


def _settles_until(book: Book, runner: Runner) -> float:
    node = book.nodes[runner.node]
    places = [uuid for uuid, _ in runner.claim.devices] or [HOST]
    freed = [book.state.recently_freed.get(f"{node.name}/{place}") for place in places]
    return max((at + node.policy.settle_s for at in freed if at is not None), default=0.0)


def _is_stuck(book: Book, runner: Runner) -> bool:
    since = runner.created if runner.reserved_at is None else runner.reserved_at
    until = max(since, _settles_until(book, runner)) + book.state.reserve_patience_s
    book.wake(until)
    if book.state.now < until:
        return False
    return not any(_room_may_come(book, member) for member in book.whole(runner))


def _room_may_come(book: Book, runner: Runner) -> bool:
    """Whether something on its node is leaving or loading: then waiting on may help."""
    place = book.at(runner.node)
    takes = amounts(place.node, runner.claim, place.unified)
    if any(place.coming.get(dim, 0) > 0 for dim, size in takes.items() if size > 0):
        return True
    mine = {member.uid for member in book.whole(book.owner(runner))}
    others = [r for r in book.by_node[runner.node] if r.uid not in mine]
    return any(_is_starting(book, r) or is_admitted(book, r) for r in others)
