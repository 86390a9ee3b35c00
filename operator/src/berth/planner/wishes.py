"""Which models want a runner that they do not have, in which order?"""

from dataclasses import dataclass
from enum import IntEnum

from berth.planner.book import LOADING, Book
from berth.planner.restarts import FORGOTTEN_AFTER_S
from berth.planner.state import Model, Runner, Stage


class Want(IntEnum):
    """Why a runner is wanted, the most pressing first."""

    WAITING = 0
    BY_HAND = 1
    PINNED = 2
    KEPT = 3
    """``minReplicas``: nobody waits."""
    REPLACE = 4
    """Its settings changed; the old runner goes on until the new one has its place."""
    COPY = 5
    """One more copy beside a runner that is up, because requests queue."""
    AUTOLOAD = 6
    BEGUN = 7
    """Nobody wants it any more, but its files have been fetched."""


@dataclass(frozen=True)
class Wish:
    """One runner to find a place for."""

    model: Model
    want: Want
    since: float
    prepared: Runner | None = None
    """The runner that fetched the files: it is moved on, on its own node."""
    replaces: Runner | None = None
    target: str = ""
    """A node, ``node/device`` or a device that the model is pinned to."""
    overdue: bool = False
    """It has waited longer than the fairness window."""
    position: int = 0
    """Its place in the load order, where nobody waits."""


def is_asked(model: Model) -> bool:
    """Whether somebody waits for the model, or asked by hand, since the last unload by hand.

    1. Requests that began to wait after the last unload by hand count.
    2. A load by hand counts if it came after the last unload by hand.
    3. ``used`` never counts.
    """
    held_down = held_down_since(model)
    if model.waiting > 0 and _after(model.waiting_since, held_down):
        return True
    return model.load_asked is not None and _after(model.load_asked, held_down)


def held_down_since(model: Model) -> float | None:
    """When the model was last unloaded by hand, if ever."""
    asked = [at for at in (model.unload_asked, model.not_before) if at is not None]
    return max(asked) if asked else None


def is_held_down(model: Model) -> bool:
    """Whether an unload by hand keeps the model down until somebody asks for it again."""
    return held_down_since(model) is not None and not is_asked(model)


def _after(at: float | None, held_down: float | None) -> bool:
    return held_down is None or (at is not None and at > held_down)


def can_be_planned(model: Model) -> bool:
    """Whether a place can be looked for: not suspended, not blocked, its needs known."""
    return not model.suspended and model.blocked is None and bool(model.needs)


def plan_target(book: Book, model: Model) -> tuple[int, Want]:
    """How many runners the model is to have, and why. 0: whoever is up may stay until idle.

    1. Suspended, blocked, or kept down by hand: none.
    2. Requests that wait, or a load by hand: at least one.
    3. Pinned: one on each place of ``pinTo``, at least one; ``minReplicas``: that many.
    4. One that was stopped for new settings: one, until it is up again.
    5. Autoload: one, until it has been up once.
    """
    if not can_be_planned(model) or is_held_down(model):
        return 0, Want.BEGUN
    kept = model.min_replicas
    if model.pinned:
        kept = max(1, kept, len(model.pin_to))
    if is_asked(model):
        waits = model.waiting > 0 and _after(model.waiting_since, held_down_since(model))
        return max(1, kept), Want.WAITING if waits else Want.BY_HAND
    if kept:
        return kept, Want.PINNED if model.pinned else Want.KEPT
    if model.owed:
        return 1, Want.KEPT
    if not model.autoload_done and book.autoloads(model):
        return 1, Want.AUTOLOAD
    return 0, Want.BEGUN


def limit(model: Model) -> int:
    """The most runners that the model may have."""
    return max(1, model.max_replicas, model.min_replicas, len(model.pin_to) if model.pinned else 0)


def plan_wishes(book: Book, model: Model) -> list[Wish]:
    """The runners that the model lacks now.

    1. One whose files were just verified is planned again, whoever waits now.
    2. Never more than ``limit`` runners, those that are still stopping included: no second copy
       is made while the old pod lives.
    3. Below the target: one wish for each missing copy, each pinned place by name. A copy beyond
       the first wants no place from others while somebody waits for the model.
    4. Everybody that is up has its hands full and requests wait: one more copy, one at a time.
    5. A runner with old settings: one replacement at a time, one at a time on each node.
    """
    target, want = plan_target(book, model)
    live = book.live(model.key)
    verified = [r for r in live if r.stage is Stage.PREPARING and r.fetched]
    if verified and can_be_planned(model):
        return [_again(book, model, verified[0], want, live)]
    if not can_be_planned(model):
        return []
    room = limit(model) - len(live) - len(book.leaving(model.key))
    missing = target - len(live)
    if missing > 0 and room > 0:
        targets = _free_targets(book, model, live)
        count = min(missing, room, 1 if want is Want.AUTOLOAD else missing)
        return [
            _wish(
                book, model, want if not live and index == 0 else _copy_want(want), targets, index
            )
            for index in range(count)
        ]
    if room > 0 and want is Want.WAITING and _hands_full(model, live):
        return [Wish(model, Want.COPY, model.waiting_since or book.state.now)]
    return _replacement(book, model, live)


def _wish(book: Book, model: Model, want: Want, targets: list[str], index: int) -> Wish:
    since = _since(book, model, want)
    overdue = want in (Want.WAITING, Want.BY_HAND) and is_overdue(book, model)
    target = targets[index] if index < len(targets) else ""
    asked = want in (Want.WAITING, Want.BY_HAND)
    position = 0 if asked else book.load_position(model)
    return Wish(model, want, since, target=target, overdue=overdue, position=position)


def wish_for(book: Book, model: Model) -> Wish:
    """The wish that stands behind a runner of the model that already has its place."""
    target, want = plan_target(book, model)
    up = any(r.stage is Stage.UP for r in book.live(model.key))
    stale = [r for r in book.by_model.get(model.key, ()) if is_stale(model, r)]
    if stale and want not in (Want.WAITING, Want.BY_HAND):
        want = Want.REPLACE
    return _wish(book, model, _copy_want(want) if up and target < 2 else want, [], 0)


def _copy_want(want: Want) -> Want:
    return Want.COPY if want in (Want.WAITING, Want.BY_HAND) else want


def _since(book: Book, model: Model, want: Want) -> float:
    if want is Want.WAITING and model.waiting_since is not None:
        return model.waiting_since
    if want is Want.BY_HAND and model.load_asked is not None:
        return model.load_asked
    return book.state.now


def is_overdue(book: Book, model: Model) -> bool:
    """Whether the model has been asked for, and not up, for longer than the fairness window."""
    if not is_asked(model):
        return False
    since = _since(book, model, plan_target(book, model)[1])
    book.wake(since + book.state.fairness_s)
    return book.state.now - since >= book.state.fairness_s


def _again(book: Book, model: Model, runner: Runner, want: Want, live: list[Runner]) -> Wish:
    stale = [r for r in live if is_stale(model, r) and r.stage is Stage.UP]
    if stale and want not in (Want.WAITING, Want.BY_HAND):
        return Wish(model, Want.REPLACE, book.state.now, prepared=runner, replaces=stale[0])
    others = [r for r in live if r is not runner and not is_stale(model, r)]
    if others:
        want = _copy_want(want)
    overdue = want in (Want.WAITING, Want.BY_HAND) and is_overdue(book, model)
    replaces = stale[0] if stale else None
    return Wish(
        model, want, _since(book, model, want), prepared=runner, replaces=replaces, overdue=overdue
    )


def _free_targets(book: Book, model: Model, live: list[Runner]) -> list[str]:
    if not model.pinned or not model.pin_to:
        return []
    return [
        target
        for target in model.pin_to
        if not any(stands_on(book, runner, target) for runner in live)
    ]


def stands_on(book: Book, runner: Runner, target: str) -> bool:
    """Whether a runner is on a node, ``node/device`` or device that ``pinTo`` names."""
    node = book.nodes.get(runner.node)
    used = {uuid for uuid, _ in runner.claim.devices}
    index = {d.uuid: f"cuda:{d.index}" for d in node.devices} if node else {}
    spelled = {runner.node} | used
    spelled |= {f"{runner.node}/{uuid}" for uuid in used}
    spelled |= {f"{runner.node}/{index[uuid]}" for uuid in used if uuid in index}
    return target in spelled


def _hands_full(model: Model, live: list[Runner]) -> bool:
    if not live or any(r.stage in LOADING or r.stage is Stage.PREPARING for r in live):
        return False
    return all(r.busy >= max(1, model.parallel) for r in live)


def is_stale(model: Model, runner: Runner) -> bool:
    """Whether the runner was made with settings that are no longer the model's."""
    known = model.settings_hash and runner.settings_hash
    return bool(known) and runner.settings_hash != model.settings_hash


def _replacement(book: Book, model: Model, live: list[Runner]) -> list[Wish]:
    """A wish to replace one runner with old settings; none while another change is under way.

    A replacement that failed is not tried again until the record of it is cleared or forgotten:
    every try may cost the old runner's clients a pause.
    """
    stale = [r for r in live if r.stage is Stage.UP and is_stale(model, r)]
    if not stale or book.leaving(model.key) or any(r.stage is not Stage.UP for r in live):
        return []
    oldest = min(stale, key=lambda r: (r.busy > 0, r.ordinal, r.uid))
    failed = model.restarts.count and book.state.now - (model.restarts.last_failed or 0.0)
    if model.profile in book.rolling_profiles:
        return []
    if oldest.node in book.rolling or (failed and failed < FORGOTTEN_AFTER_S):
        return []
    return [Wish(model, Want.REPLACE, book.state.now, replaces=oldest)]


def wish_order(wish: Wish) -> tuple[object, ...]:
    """In which order wishes get their place: deterministic, and nobody starves.

    1. Who has waited beyond the fairness window, the longest wait first, whatever its priority.
    2. Then by why it is wanted (``Want``), higher priority first, in load order where nobody waits,
       longest wait first, then name.
    """
    if wish.overdue:
        return (0, 0, 0, 0, wish.since, wish.model.key, wish.target)
    order = wish.model.priority
    return (1, int(wish.want), -order, wish.position, wish.since, wish.model.key, wish.target)
