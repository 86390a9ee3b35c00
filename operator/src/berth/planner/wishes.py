"""Which models want a runner that they do not have, in which order?"""

from dataclasses import dataclass, replace
from enum import IntEnum

from berth.planner.book import LOADING, Book
from berth.planner.restarts import FORGOTTEN_AFTER_S
from berth.planner.state import Model, Runner, Stage
from berth.planner.targets import free_targets, stands_on, strays, target_of, targets


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
    3. Pinned: one on each of its targets, at least one; ``minReplicas``: that many.
    4. One that was stopped for new settings, or for a hold that is over: one, until it is up again.
    5. Autoload: one, until it has had its turn.
    6. ``PerDevice``: where it is wanted, or a runner of it is up, one on each of its targets.
    """
    if not can_be_planned(model) or is_held_down(model):
        return 0, Want.BEGUN
    wanted = targets(book, model)
    kept = kept_count(book, model)
    if is_asked(model):
        waits = model.waiting > 0 and _after(model.waiting_since, held_down_since(model))
        return max(1, kept, len(wanted)), Want.WAITING if waits else Want.BY_HAND
    if kept:
        return kept, Want.PINNED if model.pinned else Want.KEPT
    if model.owed or model.returns:
        return 1, Want.KEPT
    if not model.autoload_done and book.autoloads(model):
        return 1, Want.AUTOLOAD
    if model.per_device and any(r.stage is Stage.UP for r in book.live(model.key)):
        return max(1, len(wanted)), Want.COPY
    return 0, Want.BEGUN


def kept_count(book: Book, model: Model) -> int:
    """How many runners the model is to have though nobody asks for it."""
    kept = model.min_replicas
    if model.pinned or (kept and model.per_device):
        return max(1, kept, len(targets(book, model)))
    return kept


def limit(book: Book, model: Model) -> int:
    """The most runners that the model may have; of a ``PerDevice`` one as many as it has targets."""
    if model.per_device:
        return max(1, len(targets(book, model)))
    return max(1, model.max_replicas, model.min_replicas, len(model.pin_to) if model.pinned else 0)


def plan_wishes(book: Book, model: Model) -> list[Wish]:
    """The runners that the model lacks now.

    1. One whose files were just verified is planned again, whoever waits now.
    2. Never more than ``limit`` runners, those that are still stopping included: no second copy
       is made while the old pod lives.
    3. Below the target: one wish for each missing copy, each target by name. A copy beyond the
       first wants no place from others while somebody waits for the model; of a ``PerDevice`` model
       that is not pinned it never does, and its first runner may go to any place.
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
    room = limit(book, model) - len(live) - len(book.leaving(model.key))
    # Who stands elsewhere stays until each target has its own: for that long it is one more.
    room += len(strays(book, model, live))
    free = _places_wanted(book, model, live, target)
    if free and room > 0:
        count = min(room, 1 if want is Want.AUTOLOAD else room)
        return [
            _wish(book, model, _want_of(model, want, beside=_is_beside(model, live, index)), place)
            for index, place in enumerate(free[:count])
        ]
    if room > 0 and want is Want.WAITING and _hands_full(model, live):
        return [Wish(model, Want.COPY, model.waiting_since or book.state.now)]
    return _replacement(book, model, live)


def _places_wanted(book: Book, model: Model, live: list[Runner], target: int) -> list[str]:
    """A target for each copy that is missing; an empty one: any place will do."""
    if not targets(book, model) or not target:
        return [""] * (target - len(live))
    if not live and not model.pinned:
        return [""]
    return free_targets(book, model, live)


def _wish(book: Book, model: Model, want: Want, target: str = "") -> Wish:
    since = _since(book, model, want)
    overdue = want in (Want.WAITING, Want.BY_HAND) and is_overdue(book, model)
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
    copies = target < 2 or model.per_device
    return _wish(book, model, _want_of(model, want, beside=up and copies))


def _want_of(model: Model, want: Want, *, beside: bool) -> Want:
    """Why a runner is wanted; ``beside``: beside another one of the model."""
    if not beside or want is Want.REPLACE:
        return want
    if model.pinned:
        return Want.PINNED
    return Want.COPY if model.per_device or want in (Want.WAITING, Want.BY_HAND) else want


def _is_beside(model: Model, live: list[Runner], index: int) -> bool:
    """While none is there, who waits may be served by any of the places of a pinned model."""
    return bool(live or (index and not model.pinned))


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
    others = [r for r in live if r is not runner and not is_stale(model, r)]
    if stale and want not in (Want.WAITING, Want.BY_HAND):
        want = Want.REPLACE
    wish = _wish(book, model, _want_of(model, want, beside=bool(others)))
    target = _target_again(book, model, runner, [*others, *stale[1:]])
    return replace(wish, prepared=runner, replaces=stale[0] if stale else None, target=target)


def _target_again(book: Book, model: Model, runner: Runner, others: list[Runner]) -> str:
    """The target that a prepared runner is for, or another free one on the node of its files."""
    own = target_of(book, model, runner)
    if own and not any(stands_on(book, other, own) for other in others):
        return own
    here = (t for t in free_targets(book, model, others) if t.partition("/")[0] == runner.node)
    return next(here, "")


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
    place = target_of(book, model, oldest)
    return [Wish(model, Want.REPLACE, book.state.now, replaces=oldest, target=place)]


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
