"""Which runners have to go, when does a drain end, and when is it taken back?"""

from berth.planner.actions import Drain, Spare, Stop
from berth.planner.book import LOADING, Book
from berth.planner.candidates import is_tolerated
from berth.planner.eviction import is_watched
from berth.planner.state import Model, Node, Runner, Stage
from berth.planner.targets import stands_on, strays, targets
from berth.planner.wishes import (
    held_down_since,
    is_held_down,
    is_overdue,
    is_stale,
    kept_count,
    limit,
    plan_target,
)
from berth.reasons import Reason

CUTS = frozenset(
    {
        Reason.DELETED,
        Reason.SUSPENDED,
        Reason.UNLOADED,
        Reason.NODE_DRAINED,
        Reason.NODE_NOT_READY,
        Reason.HELD,
    }
)
"""Drains that somebody outside asked for: past their deadline they may cut answers. No other may."""

ORPHAN_DRAIN_S = 300.0
"""Drain timeout of a runner whose Model is gone."""

_NOT_FOR_US = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""NoExecute taints that say what ``ready`` says already; a lost node has its own rule."""


def plan_leave_reason(book: Book, runner: Runner, model: Model | None) -> Reason | None:
    """Why a runner has to go whatever it does just now; ``None``: it may stay.

    1. Its Model is deleted, suspended, or was unloaded by hand after this runner was made and
       nobody has asked for it since.
    2. Its node is cordoned or has a NoExecute taint that the Model does not tolerate.
    3. A hold has taken its node.
    4. It is not started yet and its node is not ready.
    """
    if model is None:
        return Reason.DELETED
    if model.suspended:
        return Reason.SUSPENDED
    unloaded_at = held_down_since(model)
    if unloaded_at is not None and runner.created <= unloaded_at and is_held_down(model):
        return Reason.UNLOADED
    reasons = (_node_reason(book, member, model) for member in book.whole(runner))
    return next((reason for reason in reasons if reason is not None), None)


def _node_reason(book: Book, runner: Runner, model: Model) -> Reason | None:
    node = book.nodes.get(runner.node)
    if node is None:
        return None
    if not node.schedulable or _evicts(node, model):
        return Reason.NODE_DRAINED
    if node.held_by:
        return Reason.HELD
    if not node.ready and runner.stage in (Stage.PREPARING, Stage.RESERVED):
        return Reason.NODE_NOT_READY
    return None


def _evicts(node: Node, model: Model) -> bool:
    return any(
        taint.effect == "NoExecute"
        and taint.key not in _NOT_FOR_US
        and not is_tolerated(taint, model.tolerations)
        for taint in node.taints
    )


def plan_leave(book: Book, runner: Runner, model: Model | None) -> Drain | Stop | None:
    """What to do with a runner that has to go.

    1. What is not up has nobody in hand: stopped at once.
    2. What is up drains, within its Model's drain timeout.
    3. A drain that may not cut answers is ordered anew, with a deadline that counts.
    """
    reason = plan_leave_reason(book, runner, model)
    if reason is None:
        return None
    if runner.stage is not Stage.UP:
        return Stop(runner.uid, reason)
    if runner.drain is not None and runner.drain.reason in CUTS:
        return None
    timeout = ORPHAN_DRAIN_S if model is None else model.drain_timeout_s
    return Drain(runner.uid, reason, book.state.now + timeout)


def plan_drain(book: Book, runner: Runner, model: Model | None) -> Spare | Stop | None:
    """What becomes of a runner that is draining.

    1. The drain's cause is gone, and its bytes are not promised to others: spared.
    2. Quiet for ``drain_quiet_s``: stopped. From here there is no way back.
    3. Past its deadline: stopped if somebody outside asked for it (``CUTS``); else it goes on
       draining, since an answer in hand is never cut for another model's sake.
    """
    drain = runner.drain
    if drain is None or runner.uid in book.drained:
        return None
    if model is not None and is_cause_gone(book, runner, model) and can_stay(book, runner):
        return Spare(runner.uid)
    if runner.quiet_since is not None:
        quiet_at = runner.quiet_since + book.state.drain_quiet_s
        book.wake(quiet_at)
        if book.state.now >= quiet_at:
            return Stop(runner.uid, drain.reason)
    if drain.reason in CUTS:
        book.wake(drain.deadline)
        if book.state.now >= drain.deadline:
            return Stop(runner.uid, drain.reason)
    return None


def is_cause_gone(book: Book, runner: Runner, model: Model) -> bool:
    """Whether what the drain was ordered for no longer holds.

    1. Deleted, suspended, unloaded, node drained, held: the order itself was taken back.
    2. Idle: somebody uses the model or waits for it.
    3. Scaled down: the Model's maximum was raised again.
    4. Replaced: its settings are the Model's again, or its successor is gone.
    5. Its place was over-committed: as soon as there is room for it again.
    6. To make room: see ``is_victim_spared``.
    """
    drain = runner.drain
    if drain is None:
        return False
    if drain.reason in CUTS:
        return plan_leave_reason(book, runner, model) is None
    if drain.reason is Reason.IDLE:
        return model.waiting > 0 or runner.busy > 0 or model.used > drain.since
    if drain.reason is Reason.SCALED_DOWN:
        return len(book.live(model.key)) < limit(book, model)
    if drain.reason is Reason.REPLACED:
        return not is_stale(model, runner) or not book.live(model.key)
    if drain.reason is Reason.MEMORY:
        return True
    if drain.reason is Reason.MAKE_ROOM:
        return is_victim_spared(book, runner, model)
    return False


def is_victim_spared(book: Book, runner: Runner, model: Model) -> bool:
    """Whether a victim goes on after all.

    1. Its newcomer no longer loads where the victim stands: nobody is stopped in vain.
    2. Requests wait for the victim's model that began before the newcomer's did: first come,
       first served. Later ones wait for their turn.
    3. It has been busy for longer than ``spare_grace_s``: it was not idle after all.
    4. 2 and 3 do not hold against a newcomer that has waited beyond the fairness window.
    """
    drain = runner.drain
    newcomer = book.models.get(drain.newcomer) if drain is not None else None
    if drain is None or newcomer is None or not newcomers(book, runner, newcomer.key):
        return True
    if is_overdue(book, newcomer):
        return False
    if model.waiting > 0 and _before(model.waiting_since, newcomer):
        return _let_go(book, runner, newcomer)
    if runner.busy > 0:
        grace_ends = drain.since + book.state.spare_grace_s
        book.wake(grace_ends)
        if book.state.now >= grace_ends:
            return _let_go(book, runner, newcomer)
    return False


def newcomers(book: Book, victim: Runner, key: str) -> list[Runner]:
    """The newcomer's runners that load where the victim stands: on its node, or under the same cap."""
    node = book.nodes.get(victim.node)
    if node is None:
        return []
    homes = {member.node for member in book.whole(victim)}
    found = []
    for runner in book.live(key):
        if runner.stage not in LOADING:
            continue
        other = book.nodes[runner.node]
        capped = other.policy.max_runners > 0 and other.policy.name == node.policy.name
        if capped or any(member.node in homes for member in book.whole(runner)):
            found.append(runner)
    return found


def _before(since: float | None, newcomer: Model) -> bool:
    if newcomer.waiting == 0 or newcomer.waiting_since is None:
        return True
    return since is not None and since < newcomer.waiting_since


def _let_go(book: Book, victim: Runner, newcomer: Model) -> bool:
    """Give up the newcomer's reservation that the victim was to make room for, if it still can be.

    An admitted one cannot: its pod may be on its way.
    """
    for runner in newcomers(book, victim, newcomer.key):
        if runner.pod_exists or runner.stage is not Stage.RESERVED or is_admitted(book, runner):
            return False
        book.decide(runner, Stop(runner.uid, Reason.BUSY))
    return True


def is_admitted(book: Book, runner: Runner) -> bool:
    """Whether the agent's word that the memory is there still counts."""
    return runner.admitted_until is not None and runner.admitted_until > book.state.now


def can_stay(book: Book, runner: Runner) -> bool:
    """Whether nobody else was promised the runner's bytes, or its turn under a cap."""
    if runner.node not in book.nodes:
        return False
    place = book.at(runner.node)
    policy = place.node.policy
    if 0 < policy.max_runners <= book.group_size(policy.name):
        return False
    return all(_fits_again(book, member) for member in book.whole(runner))


def _fits_again(book: Book, runner: Runner) -> bool:
    if runner.node not in book.nodes:
        return False
    place = book.at(runner.node)
    held = book.takes(runner, place.unified)
    return all(place.later(dim) >= size for dim, size in held.items() if size > 0)


def plan_idle(book: Book, runner: Runner, model: Model, up: int) -> Drain | None:
    """Unload what nobody uses (L2). ``up``: runners of the model that are up and stay.

    1. Never: ``idleTimeout`` 0, pinned, or no more runners up than are kept (``minReplicas``).
    2. Never while anything is in hand, or waits, or is asked for; of a ``PerDevice`` model, which
       goes as a whole, in any runner's hand.
    3. After ``idleTimeout``, counted from the end of the last request or from when it (of a
       ``PerDevice`` model the last of them) came up, whichever is later.
    4. Never unwatched: after an outage, or while its agent is silent.
    """
    if model.idle_timeout_s <= 0 or model.pinned or up <= kept_count(book, model):
        return None
    alike = book.live(model.key) if model.per_device else [runner]
    if any(r.busy for r in alike) or model.waiting > 0 or model.load_asked is not None:
        return None
    if any(r.stage is not Stage.UP for r in alike):
        return None
    idle_at = max(model.used, *(r.up_since or 0.0 for r in alike)) + model.idle_timeout_s
    if book.state.now < idle_at:
        book.wake(idle_at)
        return None
    if not is_watched(book, runner):
        return None
    return Drain(runner.uid, Reason.IDLE, book.state.now + model.drain_timeout_s)


def plan_scale_down(book: Book, model: Model) -> None:
    """Let copies go beyond the model's maximum.

    1. What is not up yet first, at once; then what is idle; then the highest ordinal.
    2. Of a model with targets first who stands on none of them, once each target has its own.
    3. While old settings are being replaced a copy more is meant to be there.
    """
    live = book.live(model.key)
    over = len(live) - limit(book, model)
    if over <= 0 or any(is_stale(model, runner) for runner in live):
        return
    away = strays(book, model, live)
    if away and _is_moving(book, model, live):
        return
    order = sorted(
        live,
        key=lambda r: (r.stage is Stage.UP, r not in away, r.busy > 0, -r.ordinal, r.uid),
    )
    for runner in order[:over]:
        if runner.stage is Stage.UP:
            deadline = book.state.now + model.drain_timeout_s
            book.decide(runner, Drain(runner.uid, Reason.SCALED_DOWN, deadline))
        else:
            book.decide(runner, Stop(runner.uid, Reason.SCALED_DOWN))


def _is_moving(book: Book, model: Model, live: list[Runner]) -> bool:
    """Whether a target of the model still lacks a runner that is up."""
    up = [runner for runner in live if runner.stage is Stage.UP]
    return any(
        not any(stands_on(book, runner, target) for runner in up) for target in targets(book, model)
    )


def plan_replaced(book: Book, model: Model) -> None:
    """Let runners with old settings go, one at a time.

    1. What is not up yet is stopped at once: nobody is in its hands.
    2. One that is up drains once a new one is up beside it, and more are up than are wanted.
    3. Meanwhile nobody else is replaced on these nodes, nor of the same profile.
    """
    live = book.live(model.key)
    leaving = book.leaving(model.key)
    book.roll(model, [r for r in leaving if r.drain and r.drain.reason is Reason.REPLACED])
    if model.on_trial:
        book.roll(model, [r for r in live if r.stage in LOADING])
    stale = [r for r in live if is_stale(model, r)]
    if not stale or model.blocked is not None:
        return
    for runner in stale:
        if runner.stage is not Stage.UP:
            book.decide(runner, Stop(runner.uid, Reason.REPLACED))
    old = [r for r in stale if r.stage is Stage.UP]
    fresh = [r for r in live if r not in stale]
    if any(r.stage is not Stage.PREPARING for r in fresh):
        book.roll(model, old)
    if not old or not any(r.stage is Stage.UP for r in fresh):
        return
    wanted = max(1, plan_target(book, model)[0])
    if len(old) + len(fresh) <= wanted or book.leaving(model.key):
        return
    first = min(old, key=lambda r: (r.busy > 0, r.ordinal, r.uid))
    deadline = book.state.now + model.drain_timeout_s
    book.decide(first, Drain(first.uid, Reason.REPLACED, deadline, newcomer=model.key))
