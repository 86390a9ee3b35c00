"""What should change now? One pass over the whole cluster, as a function of one snapshot."""

from collections.abc import Callable
from functools import partial

from berth.planner.actions import Plan, Refuse, Verdict
from berth.planner.book import Book, short_name
from berth.planner.lifecycle import plan_model_runners, plan_runner
from berth.planner.mending import plan_mending, reservations
from berth.planner.overcommit import plan_overcommit
from berth.planner.placement import plan_placement
from berth.planner.spread import plan_spread
from berth.planner.state import Model, Runner, State
from berth.planner.verdicts import plan_verdict
from berth.planner.wishes import Wish, plan_wishes, wish_order
from berth.reasons import Reason
from berth.reasons import State as ModelState


def make_plan(state: State) -> Plan:
    """Decide everything that one snapshot asks for.

    1. Runners that exist: cleared away, stopped, drained, spared, started. Those that drain come
       last, since what becomes of a victim depends on its newcomer.
    2. Each model's runners as a set: old settings, copies too many, idle ones.
    3. Places that hold more than they have; reservations that lost their room.
    4. Wishes, in ``wish_order``: a place, a set of victims, or a refusal with numbers.
    5. A verdict for every model.

    Each model is decided within its own boundary: a bug there makes it Failed/InternalError, its
    ledger entries still count, and the others go on.
    """
    book = Book.of(state)
    for model in state.models:
        if model.per_device and wants_attention(book, model):
            _guarded(book, model.key, partial(_plan_spread, book, model))
    keys = sorted(book.by_model)
    for drains in (False, True):
        for key in keys:
            chosen = [r for r in book.by_model[key] if (r.drain is not None) is drains]
            if chosen:
                _guarded(book, key, partial(_plan_runners, book, key, chosen))
    for key in keys:
        if key in book.models:
            _guarded(book, key, partial(plan_model_runners, book, book.models[key]))
    plan_overcommit(book)
    for runner in reservations(book):
        _guarded(book, runner.model, partial(plan_mending, book, runner))
    for wish in sorted(_wishes(book), key=wish_order):
        _guarded(book, wish.model.key, partial(plan_placement, book, wish))
    verdicts = tuple(_verdict(book, model) for model in state.models)
    return Plan(tuple(book.actions), verdicts, min(book.wakes, default=None))


def _plan_spread(book: Book, model: Model) -> None:
    book.spread[model.key] = plan_spread(book, model)


def _plan_runners(book: Book, key: str, runners: list[Runner]) -> None:
    for runner in runners:
        plan_runner(book, runner, book.models.get(key))


def _wishes(book: Book) -> list[Wish]:
    found: list[Wish] = []
    for model in book.state.models:
        if wants_attention(book, model):
            _guarded(book, model.key, partial(_add_wishes, book, model, found))
    return found


def _add_wishes(book: Book, model: Model, found: list[Wish]) -> None:
    found.extend(plan_wishes(book, model))


def wants_attention(book: Book, model: Model) -> bool:
    """Whether anything at all may be wanted of the model: most models of a fleet are just down."""
    if model.waiting or model.load_asked is not None or model.min_replicas or model.pinned:
        return True
    if model.owed or model.returns:
        return True
    return model.key in book.by_model or (not model.autoload_done and book.autoloads(model))


def _guarded(book: Book, key: str, decide: Callable[[], None]) -> None:
    """Run one model's decision within its boundary."""
    if key in book.broken:
        return
    try:
        decide()
    except Exception as error:  # noqa: BLE001 - any bug here must cost one model, not the fleet
        book.broken.add(key)
        message = f"model {short_name(key)} could not be planned: {type(error).__name__}: {error}"
        if key in book.models:
            book.refuse(Refuse(key, Reason.INTERNAL_ERROR, message, final=True))


def _verdict(book: Book, model: Model) -> Verdict:
    outcome = book.outcome.get(model.key)
    if model.key in book.broken and outcome is not None:
        return Verdict(model.key, ModelState.FAILED, Reason.INTERNAL_ERROR, outcome.message)
    try:
        return plan_verdict(book, model)
    except Exception as error:  # noqa: BLE001 - as above
        message = f"model {short_name(model.key)}: {type(error).__name__}: {error}"
        return Verdict(model.key, ModelState.FAILED, Reason.INTERNAL_ERROR, message)
