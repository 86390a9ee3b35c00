"""What should people read about each model after this plan: its state, the reason, one sentence?"""

from berth.planner.actions import Prepare, Refuse, Reserve, Verdict, Wait
from berth.planner.book import Book, short_name
from berth.planner.candidates import HARD
from berth.planner.drains import is_admitted
from berth.planner.refusals import device_name
from berth.planner.restarts import FAILED_AFTER
from berth.planner.state import Model, Runner, Stage
from berth.planner.wishes import can_be_planned, is_asked, is_held_down, plan_target
from berth.reasons import Reason, State
from berth.units import show_bytes

_LEARNING = frozenset(
    {
        Reason.READING_HEADER,
        Reason.NEEDS_UNKNOWN,
        Reason.SOURCE_UNREACHABLE,
        Reason.SOURCE_TOO_SLOW,
    }
)
"""Blocked for the time being: nobody has to change anything."""

_FINAL = HARD | {Reason.NEVER_FITS, Reason.ONLY_PINNED}


def plan_verdict(book: Book, model: Model) -> Verdict:
    """The model's state, in this order: the best of its runners, what was refused, why it is down.

    1. A runner up: Up, whatever else goes on.
    2. One starting, reserved, or fetching.
    3. Only ones that are leaving: Stopping.
    4. Placed by this plan: Fetching or Waiting for its room.
    5. Refused or waiting, with the refusal's own words; Failed after a terminal failure, after
       several in a row, or where a load ran out of time.
    6. Down: suspended, blocked, unloaded by hand, idle.
    """
    live = book.live(model.key)
    if live:
        return _of_runner(book, model, max(live, key=lambda r: (_STEP[r.stage], r.uid)))
    made = book.placed.get(model.key)
    if made:
        return _of_placement(book, model, made[0])
    if not can_be_planned(model):
        return _of_blocked(book, model)
    outcome = book.outcome.get(model.key)
    if outcome is not None:
        return _of_outcome(model, outcome)
    if book.leaving(model.key):
        return _of_leaving(book, model)
    return _of_down(model)


_STEP = {
    Stage.LOST: 0,
    Stage.FAILED: 0,
    Stage.STOPPING: 0,
    Stage.PREPARING: 1,
    Stage.RESERVED: 2,
    Stage.STARTING: 3,
    Stage.UP: 4,
}


def _of_runner(book: Book, model: Model, runner: Runner) -> Verdict:
    where = _where(book, runner.node, tuple(uuid for uuid, _ in runner.claim.devices))
    name = short_name(model.key)
    outcome = book.outcome.get(model.key)
    if runner.stage is Stage.UP:
        more = f"; {outcome.message}" if outcome is not None else ""
        more += f"; {book.over[runner.node]}" if runner.node in book.over else ""
        return Verdict(model.key, State.UP, Reason.UP, f"model {name} is up on {where}{more}")
    if runner.stage is Stage.STARTING:
        return Verdict(
            model.key, State.STARTING, Reason.STARTING, f"model {name} starts on {where}"
        )
    if runner.stage is Stage.PREPARING and not runner.fetched:
        message = f"model {name}: its files are fetched to {runner.node}"
        return Verdict(model.key, State.FETCHING, Reason.PREPARING, message)
    if runner.stage is Stage.PREPARING:
        told = outcome.message if outcome is not None else f"model {name} is reserved on {where}"
        reason = outcome.reason if outcome is not None else Reason.RESERVED
        return Verdict(model.key, State.WAITING, reason, told)
    if is_admitted(book, runner):
        return Verdict(
            model.key, State.STARTING, Reason.ADMITTED, f"model {name} starts on {where}"
        )
    return Verdict(model.key, State.WAITING, Reason.RESERVED, _reserved(book, runner, name, where))


def _reserved(book: Book, runner: Runner, name: str, where: str) -> str:
    leaving = [r for r in book.by_node.get(runner.node, ()) if book.is_leaving(r)]
    told = f"model {name} waits for its room on {where}"
    if leaving:
        return f"{told}: {len(leaving)} runners there are draining or stopping"
    return f"{told}: {runner.admission_message}" if runner.admission_message else told


def _of_placement(book: Book, model: Model, made: Prepare | Reserve) -> Verdict:
    name = short_name(model.key)
    where = _where(book, made.place.node, made.place.devices)
    size = show_bytes(sum(made.need.gpus) or made.need.host)
    if isinstance(made, Prepare):
        message = f"model {name}: its files are fetched to {made.place.node}"
        return Verdict(model.key, State.FETCHING, Reason.PREPARING, message)
    message = f"model {name} has {size} reserved on {where}"
    return Verdict(model.key, State.WAITING, Reason.RESERVED, message)


def _of_leaving(book: Book, model: Model) -> Verdict:
    count, name = len(book.leaving(model.key)), short_name(model.key)
    wanted = is_asked(model) or plan_target(book, model)[0] > 0
    leaving = "1 runner is" if count == 1 else f"{count} runners are"
    gone = "that is" if count == 1 else "they are"
    again = f"; it is loaded again once {gone} gone" if wanted else ""
    message = f"model {name}: {leaving} draining or stopping{again}"
    return Verdict(model.key, State.STOPPING, Reason.DRAINING, message)


def _of_blocked(book: Book, model: Model) -> Verdict:
    name = short_name(model.key)
    if book.leaving(model.key):
        return _of_leaving(book, model)
    if model.suspended:
        return Verdict(model.key, State.DOWN, Reason.SUSPENDED, f"model {name} is suspended")
    reason = model.blocked or Reason.NEEDS_UNKNOWN
    message = model.blocked_message or f"model {name} cannot be planned yet: {reason}"
    if reason in _LEARNING:
        state = State.WAITING if is_asked(model) else State.DOWN
        return Verdict(model.key, state, reason, message)
    return Verdict(model.key, State.FAILED, reason, message)


def _of_outcome(model: Model, outcome: Refuse | Wait) -> Verdict:
    restarts = model.restarts
    gave_up = restarts.count >= FAILED_AFTER or outcome.reason is Reason.LOAD_TIMEOUT
    if isinstance(outcome, Wait):
        state = State.FAILED if gave_up else State.WAITING
    elif restarts.terminal or outcome.reason is Reason.INTERNAL_ERROR:
        state = State.FAILED
    else:
        state = State.HELD if outcome.reason is Reason.HELD else State.WAITING
    return Verdict(model.key, state, outcome.reason, outcome.message)


def _of_down(model: Model) -> Verdict:
    restarts, name = model.restarts, short_name(model.key)
    if restarts.terminal:
        reason = restarts.reason or Reason.CRASHED
        message = restarts.message or f"model {name} cannot start: {reason}"
        return Verdict(model.key, State.FAILED, reason, message)
    if is_held_down(model):
        message = f"model {name} was unloaded by hand"
        return Verdict(model.key, State.DOWN, Reason.UNLOADED, message)
    if restarts.count and restarts.reason is not None:
        message = restarts.message or f"model {name} ended: {restarts.reason}"
        return Verdict(model.key, State.DOWN, restarts.reason, message)
    if model.away_for:
        message = f"model {name} was unloaded for the hold {model.away_for}, and is loaded after it"
        return Verdict(model.key, State.DOWN, Reason.HELD, message)
    return Verdict(model.key, State.DOWN, Reason.IDLE, f"model {name} is loaded when asked for")


def _where(book: Book, node: str, devices: tuple[str, ...]) -> str:
    known = book.nodes.get(node)
    device = device_name(known, devices) if known is not None else ""
    return f"{node} {device}".strip()
