"""Does a wish have to let something else of its kind go first?"""

from berth.planner.actions import PlaceNo, Refuse
from berth.planner.book import AUTOLOAD_FIT, LOADING, Book, is_listed, short_name
from berth.planner.state import Model, Node, Policy, Stage
from berth.planner.wishes import Want, Wish, plan_target
from berth.reasons import Reason

LAST = 1 << 30
"""The position in a load order of who is not named there."""


def waits_for_turn(book: Book, wish: Wish) -> bool:
    """Whether another runner on the node of the one to be replaced, or another model of its profile,
    is being replaced just now."""
    if wish.replaces is None:
        return False
    return wish.replaces.node in book.rolling or wish.model.profile in book.rolling_profiles


def refuse_autoload(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """Why a model that nobody asks for is not loaded on a node now. Nothing else is held up here.

    1. Only nodes whose policy loads it at start.
    2. In load order: a pinned or kept model that is named before it there, and can come, is to be
       up first.
    3. One at a time on the nodes of a policy; the one whose files were fetched has its turn.
    """
    if wish.want is not Want.AUTOLOAD:
        return None
    policy, key = node.policy, wish.model.key
    if not _loads(policy, key):
        return PlaceNo(node.name, "", Reason.NO_NODE, message="it is not loaded here at start")
    main = _main_to_come(book, policy)
    if main is not None and main[0] < position(policy, key):
        message = f"it is loaded once {short_name(main[1])} is up"
        return PlaceNo(node.name, "", Reason.LOAD_IN_PROGRESS, message=message)
    if wish.prepared is None and policy.name in autoloading(book):
        message = "one model at a time is loaded at start"
        return PlaceNo(node.name, "", Reason.LOAD_IN_PROGRESS, message=message)
    return None


def autoloading(book: Book) -> set[str]:
    """Policies on whose nodes a model is being loaded by ``autoload``, in this pass or before."""
    if book.autoloading is None:
        book.autoloading = set()
        for runner in book.state.runners:
            if runner.stage in LOADING or runner.stage is Stage.PREPARING:
                note_autoload(book, runner.model, runner.node)
        for action in (made for several in book.placed.values() for made in several):
            note_autoload(book, action.model, action.place.node)
    return book.autoloading


def note_autoload(book: Book, key: str, name: str) -> None:
    """A model is being loaded on a node: if ``autoload`` is behind it, the next one waits."""
    model, node = book.models.get(key), book.nodes.get(name)
    if model is None or node is None or model.autoload_done or book.autoloading is None:
        return
    if _loads(node.policy, key):
        book.autoloading.add(node.policy.name)


def position(policy: Policy, key: str) -> int:
    """Where a model stands in a policy's load order."""
    order = enumerate(policy.load_order)
    return next((at for at, name in order if name in (key, short_name(key))), LAST)


def _loads(policy: Policy, key: str) -> bool:
    return AUTOLOAD_FIT in policy.autoload or is_listed(policy.autoload, key)


def _main_to_come(book: Book, policy: Policy) -> tuple[int, str] | None:
    """The first in the load order that is kept without a request and is not up: position and key.

    One that the user must mend first, or that has no place whatever ends, holds up nobody. Asked
    for when all of them have been planned in this pass.
    """
    if policy.name not in book.mains:
        kept = [model for model in book.state.models if model.pinned or model.min_replicas]
        named = ((position(policy, m.key), m.key) for m in kept if _is_to_come(book, m))
        book.mains[policy.name] = min((one for one in named if one[0] < LAST), default=None)
    return book.mains[policy.name]


def _is_to_come(book: Book, model: Model) -> bool:
    outcome = book.outcome.get(model.key)
    if not plan_target(book, model)[0] or (isinstance(outcome, Refuse) and outcome.final):
        return False
    return not any(runner.stage is Stage.UP for runner in book.live(model.key))
