"""With which settings does a model's next runner start: the new ones, or those that were last good?

The whole of a switch is read off the objects: what was good, what is on trial, what has failed. A
controller that is started anew in the middle of one therefore goes on where its forerunner was.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from berth.planner.actions import Plan, Stop
from berth.planner.restarts import FORGOTTEN_AFTER_S, OF_THE_PLACE, TERMINAL
from berth.planner.state import Restarts, Runner, Stage
from berth.reasons import Reason

_STANDING = frozenset({Stage.PREPARING, Stage.RESERVED, Stage.STARTING, Stage.UP})
_WITH_POD = frozenset({Stage.STARTING, Stage.UP})
_FALLEN = frozenset({Stage.FAILED, Stage.LOST})
_MOST_FALLS = 2
"""So often in a row what was good may fail to come back before what is new is tried after all."""

WISHED = frozenset(
    {
        Reason.SUSPENDED,
        Reason.UNLOADED,
        Reason.DELETED,
        Reason.HELD,
        Reason.NODE_DRAINED,
        Reason.SCALED_DOWN,
        Reason.IDLE,
        Reason.REPLACED,
    }
)
"""Ends that say nothing about the settings: somebody asked for them."""


class Phase(StrEnum):
    """How a model's settings stand to those that it asks for."""

    FIRST = "First"
    """Nothing was ever good: there is nothing to go back to."""
    STEADY = "Steady"
    """What it asks for is what is good."""
    PENDING = "Pending"
    """New settings are to be tried; no runner has them yet."""
    TRIAL = "Trial"
    """A runner with the new settings stands and is not up yet."""
    BACK = "Back"
    """The new settings failed, cannot be tried, or must wait: what was good runs."""


@dataclass(frozen=True)
class Change:
    """What is remembered from pass to pass. Settings are named by their hash; empty: none."""

    good: str = ""
    """The settings of the runner that was last up."""
    fell: bool = False
    """What was good went down by itself while a change was asked for: it comes first."""
    owed: bool = False
    """A runner was stopped for the change: one is started again though nobody waits for it."""
    trial: str = ""
    """The settings that were last tried, until they are good."""
    started: bool = False
    """The trial had a pod."""
    failed: Reason | None = None
    """Why the trial is over. It is not repeated until the settings change again."""
    message: str = ""
    failed_at: float = 0.0


@dataclass(frozen=True)
class Asked:
    """What a model asks for now. ``blocked``: no runner can be started with it, and why."""

    settings: str
    blocked: Reason | None = None
    restarts: Restarts = Restarts()
    """How what is good has failed lately."""


@dataclass(frozen=True)
class Rollout:
    """The answer: what to remember, and with which settings the next runner is started."""

    change: Change
    phase: Phase
    settings: str

    @property
    def is_back(self) -> bool:
        """Whether runners are started with what was good instead of what is asked for."""
        return self.phase is Phase.BACK


_TOLD_TO_WAIT = frozenset({Reason.READING_HEADER})
_NOT_GRANTED = frozenset(
    {
        Reason.UNTRUSTED_PATH,
        Reason.SOURCE_FORBIDDEN,
        Reason.SOURCE_UNAUTHORIZED,
        Reason.SECRET_NOT_FOUND,
        Reason.CLAIM_NOT_FOUND,
    }
)
"""Who may not have the files any more does not get them by way of what was good."""


def plan_rollout(before: Change, asked: Asked, runners: Iterable[Runner], now: float) -> Rollout:
    """Decide between what a model asks for and what was last good.

    1. A runner that is up with the settings asked for, or with those on trial, makes them good.
    2. Nothing was ever good, or what is asked for is good: there is no choice.
    3. What is asked for cannot be started at all: what was good, unless the files may not be had
       any more, or the answer is only a moment away.
    4. The trial failed (``_judged``): what was good, until the settings change again. A trial that
       had touched nobody and may do better later is repeated after ten minutes.
    5. What was good went down by itself before the trial had a pod: it comes back first, unless it
       fails to.
    6. Otherwise what is asked for.
    """
    mine = tuple(runners)
    known = _owing(_committed(before, asked, mine), mine)
    good = known.good
    if asked.blocked in _NOT_GRANTED or asked.blocked in _TOLD_TO_WAIT or not good:
        return Rollout(known, Phase.PENDING if good else Phase.FIRST, asked.settings)
    if asked.blocked is not None:
        return Rollout(known, Phase.BACK, good)
    if not asked.settings or asked.settings == good:
        return Rollout(_settled(known), Phase.STEADY, asked.settings)
    known = _judged(known, asked, mine, now)
    if known.failed is not None:
        return Rollout(known, Phase.BACK, good)
    stands = [r for r in mine if r.settings_hash == asked.settings and r.stage in _STANDING]
    known = _fallen(known, asked, mine)
    if known.fell and not any(r.stage in _WITH_POD for r in stands):
        return Rollout(known, Phase.BACK, good)
    return Rollout(known, Phase.TRIAL if stands else Phase.PENDING, asked.settings)


def _committed(before: Change, asked: Asked, mine: tuple[Runner, ...]) -> Change:
    """A switch is done when a runner with the new settings is up; a first load makes a beginning."""
    up = sorted(r.settings_hash for r in mine if r.stage is Stage.UP and r.settings_hash)
    takes_over = [name for name in (asked.settings, before.trial) if name and name in up]
    if not takes_over and not before.good:
        takes_over = up
    if not takes_over or takes_over[0] == before.good:
        return before
    return Change(good=takes_over[0])


def _owing(known: Change, mine: tuple[Runner, ...]) -> Change:
    """Whether a runner was taken down for the change, and none has taken its place yet."""
    if any(r.stage is Stage.UP and r.drain is None for r in mine):
        return replace(known, owed=False) if known.owed else known
    leaves = any(r.drain is not None and r.drain.reason is Reason.REPLACED for r in mine)
    return replace(known, owed=True) if leaves and not known.owed else known


def _settled(known: Change) -> Change:
    return Change(good=known.good, owed=known.owed)


def _judged(known: Change, asked: Asked, mine: tuple[Runner, ...], now: float) -> Change:
    """What has become of the trial.

    1. Another one than what is asked for: forgotten; a runner with the new settings begins one.
    2. A runner of it stands: it goes on.
    3. It ended, and had touched nobody (what was good is up): only a failure of its own counts,
       not one of its place, nor a reservation that was given up.
    4. It ended without a word, or while nothing else was up: it failed.
    """
    if known.trial != asked.settings:
        known = Change(good=known.good, fell=known.fell, owed=known.owed)
    if known.failed is not None:
        again = not known.started and known.failed not in TERMINAL
        is_over = again and now - known.failed_at >= FORGOTTEN_AFTER_S
        return _without_trial(known) if is_over else known
    trials = [r for r in mine if r.settings_hash == asked.settings]
    if any(r.stage in _STANDING for r in trials):
        started = known.started or any(r.stage in _WITH_POD for r in trials)
        return replace(known, trial=asked.settings, started=started)
    ended = [r for r in trials if r.stage in _FALLEN]
    if not known.trial and not ended:
        return known
    serves = any(_serves(r, known.good) for r in mine)
    why = _why(ended)
    excused = why in OF_THE_PLACE or (not ended and not known.started)
    if serves and excused:
        return _without_trial(known)
    message = next((r.exit_message for r in ended if r.exit_message), "")
    return replace(known, trial=asked.settings, failed=why, message=message, failed_at=now)


def _why(ended: list[Runner]) -> Reason:
    if not ended:
        return Reason.INTERRUPTED
    if ended[0].exit_reason is not None:
        return ended[0].exit_reason
    return Reason.NODE_LOST if ended[0].stage is Stage.LOST else Reason.CRASHED


def _serves(runner: Runner, good: str) -> bool:
    return (
        runner.settings_hash == good
        and runner.stage is Stage.UP
        and (runner.drain is None or runner.drain.reason is Reason.REPLACED)
    )


def _without_trial(known: Change) -> Change:
    return Change(good=known.good, fell=known.fell, owed=known.owed)


def _fallen(known: Change, asked: Asked, mine: tuple[Runner, ...]) -> Change:
    """Whether what was good is to come back before anything new is tried."""
    own = [r for r in mine if r.settings_hash == known.good]
    up = any(r.stage is Stage.UP for r in own)
    gives_up = asked.restarts.count >= _MOST_FALLS or asked.restarts.terminal
    fell = not up and not gives_up and (known.fell or any(r.stage in _FALLEN for r in own))
    return replace(known, fell=fell) if fell != known.fell else known


def counts_as_failure(rollout: Rollout | None, settings: str) -> bool:
    """Whether a runner's failure is one of the model: a trial's is the trial's alone."""
    if rollout is None or not rollout.change.good or not settings:
        return True
    return settings == rollout.change.good


def after_plan(change: Change, plan: Plan, runners: Iterable[Runner], now: float) -> Change:
    """What to remember once the plan is carried out, with the plan's own reason for a trial's end.

    1. Somebody asked for the end: the trial has not failed, and may be begun again.
    2. It had a pod, or what was good does not serve: it failed.
    3. It was given up before it had touched anybody: the next pass sees it gone.
    """
    mine = tuple(runners)
    trials = {r.uid for r in mine if r.settings_hash == change.trial and r.stage in _STANDING}
    ends = [a.reason for a in plan.actions if isinstance(a, Stop) and a.runner in trials]
    if not change.trial or change.failed is not None or not ends:
        return change
    if ends[0] in WISHED:
        return _without_trial(change)
    if not change.started and any(_serves(r, change.good) for r in mine):
        return change
    return replace(change, failed=ends[0], failed_at=now)
