"""What does the runner do next? A pure state machine: state and event in, state and effects out.

Time is a field of every event (seconds of a monotonic clock); nothing here reads a clock, and
nothing here touches a process. The rules, in order, are in `advance`.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never


class Phase(Enum):
    """Where the runner is. ``value`` is the word that the control port says."""

    STARTING = "starting"
    TESTING = "testing"
    """Healthy; the smoke test is under way and decides whether it is up."""
    UP = "ok"
    DRAINING = "draining"
    SAVING = "saving"
    STOPPING = "stopping"
    ENDED = "ended"


class Why(Enum):
    """Why the engine is being stopped; the words of the termination message."""

    NOBODY = "the engine ended by itself"
    BEFORE_UP = "stopped before it was up"
    QUIET = "drained: no work for the whole quiet time"
    TIMEOUT = "the drain timeout passed with work still in hand"
    TOLD_TWICE = "a second signal ended the drain"
    SMOKE = "the smoke test failed"
    HANG = "killed by the agent: work without progress"


@dataclass(frozen=True)
class Limits:
    """Spans in seconds: of quiet before a stop, of the whole drain, from SIGTERM to SIGKILL, and for
    saving sessions (0: none are)."""

    quiet_s: float
    drain_s: float
    stop_s: float
    save_s: float = 0.0


@dataclass(frozen=True)
class State:
    """Instants are of the events' clock; None where it has not happened."""

    phase: Phase = Phase.STARTING
    is_to_be_tested: bool = False
    """Whether a smoke test decides that the engine is up; else its health does."""
    was_up: bool = False
    why: Why = Why.NOBODY
    drain_since: float | None = None
    quiet_since: float | None = None
    save_since: float | None = None
    stop_since: float | None = None
    killed: bool = False
    fault: str = ""
    """What the smoke test found wrong."""
    busy: bool | None = None
    """Work in hand at the last look; None when that could not be learnt."""


@dataclass(frozen=True)
class EngineHealthy:
    """The engine's health path answered 200."""

    at: float


@dataclass(frozen=True)
class SmokeEnded:
    """The smoke test is over. ``fault`` says what was wrong; empty: it passed."""

    at: float
    fault: str


@dataclass(frozen=True)
class WorkSeen:
    """One look at the engine's work in hand. ``busy`` None: the look failed."""

    at: float
    busy: bool | None


@dataclass(frozen=True)
class SessionsSaved:
    """Saving has ended, well or not."""

    at: float


@dataclass(frozen=True)
class StopAsked:
    """SIGTERM or SIGINT."""

    at: float


@dataclass(frozen=True)
class HangSeen:
    """SIGUSR1: the agent, who alone judges progress, calls the engine hung."""

    at: float


@dataclass(frozen=True)
class EngineEnded:
    """The engine was reaped. ``status`` as of `os.waitstatus_to_exitcode`: negative = signal."""

    at: float
    status: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    at: float


Event = (
    EngineHealthy
    | SmokeEnded
    | WorkSeen
    | SessionsSaved
    | StopAsked
    | HangSeen
    | EngineEnded
    | Tick
)


class Effect(Enum):
    """What the supervisor must carry out."""

    TEST = "send the engine its smoke test"
    DROP_CACHE = "drop the page cache of files that are not read again"
    SAVE = "save the engine's sessions"
    TERMINATE = "send the engine SIGTERM"
    KILL = "send the engine's process group SIGKILL"


Step = tuple[State, tuple[Effect, ...]]


def advance(state: State, event: Event, limits: Limits) -> Step:
    """The next state and what to do.

    1. The engine ended: ended, whatever else is true.
    2. The first health makes it up, or begins the smoke test, which does if it passes and stops the
       engine if not; pages not read again are dropped once, when it is up.
    3. A first signal before it is up stops it: no answer can be in flight.
    4. A first signal while it is up starts the drain; nothing else happens to the engine, for
       llama-server and vLLM cut running answers at SIGTERM.
    5. A second signal is obeyed at once: it stops a draining or saving engine, it kills a stopping one.
    6. Quiet is a run of looks without work; one look with work, or a failed look, begins it anew.
    7. Draining ends at a look that finds `quiet_s` of quiet, or after `drain_s` in any case.
    8. After quiet, sessions are saved, for `save_s` at most; with work still in hand none are.
    9. An engine that outlives SIGTERM by `stop_s` is killed, once.
    """
    if state.phase is Phase.ENDED:
        return state, ()
    match event:
        case EngineEnded():
            return replace(state, phase=Phase.ENDED), ()
        case EngineHealthy():
            return _healthy(state)
        case SmokeEnded(at, fault):
            return _tested(state, at, fault)
        case StopAsked(at):
            return _asked(state, at)
        case HangSeen(at):
            return _kill(replace(state, phase=Phase.STOPPING, why=Why.HANG, stop_since=at))
        case WorkSeen(at, busy):
            looked = _looked(state, at, busy)
            return _rested(looked, at, limits) if _is_quiet(looked, at, limits) else (looked, ())
        case SessionsSaved(at):
            return _stop(state, at, Why.QUIET) if state.phase is Phase.SAVING else (state, ())
        case Tick(at):
            return _deadlines(state, at, limits)
        case _:
            assert_never(event)


def _healthy(state: State) -> Step:
    if state.phase is not Phase.STARTING:
        return state, ()
    if state.is_to_be_tested:
        return replace(state, phase=Phase.TESTING), (Effect.TEST,)
    return _up(state)


def _tested(state: State, at: float, fault: str) -> Step:
    if state.phase is not Phase.TESTING:
        return state, ()
    return _stop(replace(state, fault=fault), at, Why.SMOKE) if fault else _up(state)


def _up(state: State) -> Step:
    return replace(state, phase=Phase.UP, was_up=True), (Effect.DROP_CACHE,)


def _asked(state: State, at: float) -> Step:
    if state.phase in (Phase.STARTING, Phase.TESTING):
        return _stop(state, at, Why.BEFORE_UP)
    if state.phase is Phase.UP:
        return replace(state, phase=Phase.DRAINING, drain_since=at, quiet_since=None), ()
    if state.phase in (Phase.DRAINING, Phase.SAVING):
        return _stop(state, at, Why.TOLD_TWICE)
    return _kill(state)


def _looked(state: State, at: float, busy: bool | None) -> State:
    if busy is not False:
        return replace(state, busy=busy, quiet_since=None)
    since = at if state.quiet_since is None else state.quiet_since
    return replace(state, busy=False, quiet_since=since)


def _is_quiet(state: State, at: float, limits: Limits) -> bool:
    # Judged on a fresh look only: a clock that ran on since the last look proves nothing.
    if state.phase is not Phase.DRAINING or state.quiet_since is None:
        return False
    return at - state.quiet_since >= limits.quiet_s


def _rested(state: State, at: float, limits: Limits) -> Step:
    if limits.save_s <= 0:
        return _stop(state, at, Why.QUIET)
    return replace(state, phase=Phase.SAVING, save_since=at), (Effect.SAVE,)


def _deadlines(state: State, at: float, limits: Limits) -> Step:
    if state.phase is Phase.DRAINING and at - (state.drain_since or at) >= limits.drain_s:
        return _stop(state, at, Why.TIMEOUT)
    if state.phase is Phase.SAVING and at - (state.save_since or at) >= limits.save_s:
        return _stop(state, at, Why.QUIET)
    if state.stop_since is not None and at - state.stop_since >= limits.stop_s:
        return _kill(state)
    return state, ()


def _stop(state: State, at: float, why: Why) -> Step:
    return replace(state, phase=Phase.STOPPING, stop_since=at, why=why), (Effect.TERMINATE,)


def _kill(state: State) -> Step:
    if state.killed:
        return state, ()
    return replace(state, killed=True), (Effect.KILL,)
