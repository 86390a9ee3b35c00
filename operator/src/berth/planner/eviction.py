"""Which runners may give way, and which of them make the cheapest complete set of victims?"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from berth.planner.actions import Drain
from berth.planner.amounts import Amounts, NodeBook
from berth.planner.book import Book
from berth.planner.state import Model, Runner, Stage
from berth.planner.wishes import Want, Wish
from berth.reasons import Reason


@dataclass(frozen=True, order=True)
class Rank:
    """How dear a victim is; the cheapest first. Compared field by field.

    1. Copies beyond what the model keeps, then ordinary runners, then kept-loaded ones.
    2. Lower priority.
    3. Least recently used.
    4. Cheaper to load again, as measured.
    5. Uid, so that the order is total.
    """

    worth: int
    priority: int
    used: float
    reload_s: float
    uid: str


COPY, ORDINARY, KEPT = 0, 1, 2


def rank(book: Book, runner: Runner, model: Model) -> Rank:
    """The runner's place in the order of victims."""
    used = max(model.used, runner.up_since or 0.0)
    return Rank(
        _worth(book, runner, model), model.priority, used, model.load_seconds or 0.0, runner.uid
    )


def _worth(book: Book, runner: Runner, model: Model) -> int:
    siblings = sorted((r.ordinal, r.uid) for r in book.live(model.key) if r.stage is Stage.UP)
    kept_copies = max(1, model.min_replicas)
    if (runner.ordinal, runner.uid) not in siblings[:kept_copies]:
        return COPY
    is_kept = model.min_replicas > 0 or model.idle_timeout_s == 0
    return KEPT if is_kept else ORDINARY


# Each rule says why a runner may not give way to a wish, or nothing. The first that speaks wins.


def refuse_not_up(book: Book, runner: Runner, model: Model, wish: Wish) -> Reason | None:
    """A runner that is loading, leaving or lost is never a victim."""
    if runner.stage is not Stage.UP or book.is_leaving(runner):
        return Reason.LOAD_IN_PROGRESS
    return None


def refuse_pinned(book: Book, runner: Runner, model: Model, wish: Wish) -> Reason | None:
    """A pinned model never gives way."""
    return Reason.ONLY_PINNED if model.pinned else None


def refuse_unwatched(book: Book, runner: Runner, model: Model, wish: Wish) -> Reason | None:
    """What may be busy unseen is left alone: after an outage, or with a silent agent."""
    if not is_watched(book, runner):
        return Reason.NO_AGENT
    return None


def refuse_just_used(book: Book, runner: Runner, model: Model, wish: Wish) -> Reason | None:
    """Shortly after coming up, or after a use, a report of no work is not believed yet.

    Those who waited reach the runner before the agent's next probe tells of it.
    """
    up_since = runner.up_since or 0.0
    last = up_since if wish.overdue else max(model.used, up_since)
    until = last + book.state.first_use_s
    if book.state.now >= until:
        return None
    book.wake(until)
    return Reason.BUSY


def refuse_in_use(book: Book, runner: Runner, model: Model, wish: Wish) -> Reason | None:
    """A runner with requests in hand, or waiting, gives way only in turn.

    Its turn ends when the other has waited for the fairness window and it has been up as long:
    then it is drained, what it has in hand is finished, and what is new waits.
    """
    if not is_in_use(runner, model):
        return None
    until = (runner.up_since or 0.0) + book.state.fairness_s
    if wish.overdue and book.state.now >= until:
        return None
    book.wake(until)
    return Reason.BUSY


def refuse_kept(book: Book, runner: Runner, model: Model, wish: Wish) -> Reason | None:
    """Where nobody waits, only what has long been idle gives way, and nothing that would come back.

    Without this rule two models with ``minReplicas`` that exclude each other would swap for ever.
    """
    if wish.want in (Want.WAITING, Want.BY_HAND):
        return None
    if wish.want is not Want.PINNED and _worth(book, runner, model) == KEPT:
        return Reason.BUSY
    until = max(model.used, runner.up_since or 0.0) + book.state.fairness_s
    if book.state.now >= until:
        return None
    book.wake(until)
    return Reason.BUSY


def refuse_no_right(book: Book, runner: Runner, model: Model, wish: Wish) -> Reason | None:
    """Autoload, one more copy, and a load that nobody wants any more take from nobody."""
    return Reason.BUSY if wish.want in (Want.COPY, Want.AUTOLOAD, Want.BEGUN) else None


VictimRule = Callable[[Book, Runner, Model, Wish], Reason | None]

VICTIM_RULES: tuple[VictimRule, ...] = (
    refuse_pinned,
    refuse_not_up,
    refuse_no_right,
    refuse_unwatched,
    refuse_just_used,
    refuse_in_use,
    refuse_kept,
)


def refuse_victim(book: Book, runner: Runner, wish: Wish) -> Reason | None:
    """Why ``runner`` may not give way to ``wish``; ``None``: it may. First rule that speaks wins.

    The answer depends on the wish's rights (``want``, ``overdue``) alone. That a model does not make
    room for itself is seen to where the set is made.
    """
    model = book.models.get(runner.model)
    if model is None:
        return Reason.DELETED  # It is being drained for its own sake.
    for rule in VICTIM_RULES:
        reason = rule(book, runner, model, wish)
        if reason is not None:
            return reason
    return None


def is_watched(book: Book, runner: Runner) -> bool:
    """Whether its being idle can be believed: healthy watches, and a fresh report of its agent."""
    state = book.state
    healthy_at = state.healthy_since + state.healthy_needed_s
    if state.now < healthy_at:
        book.wake(healthy_at)
        return False
    node = book.nodes.get(runner.node)
    return node is not None and node.agent_fresh and node.ready


def is_in_use(runner: Runner, model: Model) -> bool:
    """Whether it has requests in hand, or some wait for its model."""
    return runner.busy > 0 or model.waiting > 0


def plan_victims(
    book: Book, place: NodeBook, lacks: Mapping[str, int], wish: Wish
) -> tuple[Runner, ...] | None:
    """The cheapest complete set of runners on one node whose going makes good what it ``lacks``.

    1. What is draining or stopping already counts as room.
    2. Cheapest first (``Rank``), only those that hold something of what is missing, and none of
       the model's own but the one that is being replaced.
    3. Then every member that is not needed is dropped again, the dearest first: no set has one
       runner more than it needs.
    4. No set is enough: ``None``, and nobody is touched.
    5. A load whose memory cannot be measured yet counts twice; nobody is stopped for that. The
       place waits until the load is up: no second one is admitted there before.
    """
    if not place.loading.isdisjoint(lacks):
        return None
    goal = dict(lacks)
    for member in book.whole(wish.replaces) if wish.replaces is not None else ():
        if member.node == place.node.name:
            _subtract(goal, book.takes(member, place.unified))
    chosen: list[Runner] = []
    left = dict(goal)
    for _, runner in evictable(book, place, wish) if _is_short(left) else ():
        held = book.takes(runner, place.unified)
        if any(left[dim] > 0 and held.get(dim, 0) > 0 for dim in left):
            chosen.append(runner)
            _subtract(left, held)
        if not _is_short(left):
            return tuple(_minimal(book, place, goal, chosen))
    return None if _is_short(left) else ()


def _is_short(left: Mapping[str, int]) -> bool:
    return any(size > 0 for size in left.values())


def evictable(
    book: Book, place: NodeBook, wish: Wish, own: str | None = None
) -> list[tuple[Rank, Runner]]:
    """The node's runners that may give way to ``wish``, with their ranks, the cheapest first.

    ``own`` is the model whose runners are left out; the wish's, unless told otherwise. Remembered for wishes with the same rights, until one of the runners changes.
    """
    name, key = place.node.name, (wish.want, wish.overdue)
    known = book.ranked.setdefault(name, {})
    if key not in known:
        known[key] = sorted(
            (rank(book, book.owner(runner), book.models[runner.model]), runner)
            for runner in book.by_node.get(name, ())
            if refuse_victim(book, book.owner(runner), wish) is None
        )
    found: list[tuple[Rank, Runner]] = known[key]
    own = wish.model.key if own is None else own
    return [pair for pair in found if pair[1].model != own]


def cheapest_first(
    book: Book, wish: Wish, names: tuple[str, ...]
) -> Iterator[tuple[str, Rank | None]]:
    """Nodes with runners that may give way; from where on a rank is given, no runner on a node, or on
    one after it, is cheaper.

    Nodes that this pass has changed come first, since what is remembered of them is out of date.
    """
    key, wanted = (wish.want, wish.overdue), frozenset(names)
    if key not in book.cheapest:
        found = ((evictable(book, book.at(name), wish, own=""), name) for name in book.nodes)
        book.cheapest[key] = sorted((pairs[0][0], name) for pairs, name in found if pairs)
    yield from ((name, None) for name in sorted(book.changed & wanted))
    done = frozenset(book.changed)
    for least, name in book.cheapest[key]:
        if name in wanted and name not in done:
            yield name, least


def _minimal(
    book: Book, place: NodeBook, lacks: Mapping[str, int], chosen: list[Runner]
) -> Iterable[Runner]:
    kept = list(chosen)
    for runner in reversed(chosen):
        rest = [other for other in kept if other is not runner]
        left = dict(lacks)
        for other in rest:
            _subtract(left, book.takes(other, place.unified))
        if not _is_short(left):
            kept = rest
    return kept


def plan_cap_victims(
    book: Book, place: NodeBook, wish: Wish, chosen: tuple[Runner, ...], *, newcomers: int = 1
) -> tuple[Runner, ...] | None:
    """More victims, anywhere in the group of nodes, until its ``maxRunners`` holds the newcomers.

    ``None``: the cap cannot be met now.
    """
    policy = place.node.policy
    if policy.max_runners <= 0:
        return ()
    gone = [r for r in chosen if book.nodes[r.node].policy.name == policy.name]
    if wish.replaces is not None and book.nodes[wish.replaces.node].policy.name == policy.name:
        gone.append(wish.replaces)
    over = book.group_size(policy.name) + newcomers - len(gone) - policy.max_runners
    if over <= 0:
        return ()
    taken = {runner.uid for runner in gone}
    found = [
        runner
        for _, runner in _group_ranked(book, policy.name, wish)
        if runner.uid not in taken and runner.model != wish.model.key
    ]
    return tuple(found[:over]) if len(found) >= over else None


def _group_ranked(book: Book, policy: str, wish: Wish) -> list[tuple[Rank, Runner]]:
    key = (policy, wish.want, wish.overdue)
    if key not in book.groups_ranked:
        group = (node.name for node in book.state.nodes if node.policy.name == policy)
        book.groups_ranked[key] = sorted(
            pair for name in group for pair in evictable(book, book.at(name), wish, own="")
        )
    found: list[tuple[Rank, Runner]] = book.groups_ranked[key]
    return found


def dearest(book: Book, victims: Iterable[Runner]) -> tuple[Rank, ...]:
    """The ranks of a set, the dearest first: how sets on different places are compared."""
    heads = {book.owner(runner).uid: book.owner(runner) for runner in victims}
    ranks = (rank(book, runner, book.models[runner.model]) for runner in heads.values())
    return tuple(sorted(ranks, reverse=True))


def _subtract(left: Amounts, held: Mapping[str, int]) -> None:
    for dim in left:
        left[dim] -= held.get(dim, 0)


def drain_victims(book: Book, victims: tuple[Runner, ...], newcomer: str) -> None:
    """Ask the victims to drain, each within its own Model's drain timeout."""
    for victim in {book.owner(one).uid: book.owner(one) for one in victims}.values():
        if book.is_leaving(victim):
            continue
        deadline = book.state.now + book.models[victim.model].drain_timeout_s
        book.decide(victim, Drain(victim.uid, Reason.MAKE_ROOM, deadline, newcomer=newcomer))
