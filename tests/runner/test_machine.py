"""Does the runner's state machine drain, stop and kill when it should, and only then?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.runner.machine import (
    Effect,
    EngineEnded,
    EngineHealthy,
    HangSeen,
    Limits,
    Phase,
    SessionsSaved,
    SmokeEnded,
    State,
    StopAsked,
    Tick,
    Why,
    WorkSeen,
    advance,
)

LIMITS = Limits(quiet_s=2.0, drain_s=30.0, stop_s=5.0)


def play(*events):
    """The phase after the events, why, and every effect with the instant at which it came."""
    state, effects = State(), []
    for event in events:
        state, now = advance(state, event, LIMITS)
        effects += [(event.at, effect) for effect in now]
    return state.phase, state.why, effects


def play_tested(*events):
    """As ``play``, for a runner that must pass a smoke test."""
    state, effects = State(is_to_be_tested=True), []
    for event in events:
        state, now = advance(state, event, LIMITS)
        effects += [(event.at, effect) for effect in now]
    return state.phase, state.why, effects


SAVING = Limits(quiet_s=2.0, drain_s=30.0, stop_s=5.0, save_s=10.0)
REST = (EngineHealthy(1), StopAsked(2), WorkSeen(3, False), WorkSeen(5, False))


@pytest.mark.parametrize(
    ("events", "phase", "effects"),
    [
        pytest.param([], Phase.SAVING, [(5, Effect.SAVE)], id="after quiet, sessions are saved"),
        pytest.param(
            [SessionsSaved(6)],
            Phase.STOPPING,
            [(5, Effect.SAVE), (6, Effect.TERMINATE)],
            id="and then the engine gets its signal",
        ),
        pytest.param(
            [Tick(14)], Phase.SAVING, [(5, Effect.SAVE)], id="saving has the time it was given"
        ),
        pytest.param(
            [Tick(15)],
            Phase.STOPPING,
            [(5, Effect.SAVE), (15, Effect.TERMINATE)],
            id="and no more",
        ),
        pytest.param(
            [StopAsked(6), SessionsSaved(7)],
            Phase.STOPPING,
            [(5, Effect.SAVE), (6, Effect.TERMINATE)],
            id="a second signal ends it at once",
        ),
    ],
)
def test_saving(events, phase, effects):
    state, found = State(), []
    for event in [*REST, *events]:
        state, now = advance(state, event, SAVING)
        found += [(event.at, effect) for effect in now]
    assert (state.phase, found[1:]) == (phase, effects)


def test_with_work_still_in_hand_at_the_end_of_the_drain_nothing_is_saved():
    state = State()
    for event in (EngineHealthy(1), StopAsked(2), WorkSeen(3, True)):
        state, _ = advance(state, event, SAVING)
    state, effects = advance(state, Tick(32), SAVING)
    assert (state.phase, state.why, effects) == (
        Phase.STOPPING,
        Why.TIMEOUT,
        (Effect.TERMINATE,),
    )


DROP = (1, Effect.DROP_CACHE)
UP = EngineHealthy(1)

TABLE = [
    pytest.param([UP, EngineHealthy(2)], Phase.UP, [DROP], id="the cache is dropped once"),
    pytest.param(
        [StopAsked(1)],
        Phase.STOPPING,
        [(1, Effect.TERMINATE)],
        id="an engine that is not up has nothing to finish",
    ),
    pytest.param([UP, StopAsked(2)], Phase.DRAINING, [DROP], id="a drain touches nobody at first"),
    pytest.param(
        [UP, StopAsked(2), WorkSeen(3, True), WorkSeen(20, True)],
        Phase.DRAINING,
        [DROP],
        id="a busy engine is left alone",
    ),
    pytest.param(
        [UP, StopAsked(2), WorkSeen(3, False), WorkSeen(5, False)],
        Phase.STOPPING,
        [DROP, (5, Effect.TERMINATE)],
        id="two seconds of quiet end the drain",
    ),
    pytest.param(
        [UP, StopAsked(2), WorkSeen(3, False), WorkSeen(4, True), WorkSeen(5.5, False)],
        Phase.DRAINING,
        [DROP],
        id="one busy look begins the quiet anew",
    ),
    pytest.param(
        [UP, StopAsked(2), WorkSeen(3, False), WorkSeen(4, None), WorkSeen(5.5, False)],
        Phase.DRAINING,
        [DROP],
        id="a look that failed proves no quiet",
    ),
    pytest.param(
        [UP, StopAsked(2), WorkSeen(3, False), Tick(9)],
        Phase.DRAINING,
        [DROP],
        id="time without a fresh look is not quiet",
    ),
    pytest.param(
        [UP, StopAsked(2), WorkSeen(31, True), Tick(32)],
        Phase.STOPPING,
        [DROP, (32, Effect.TERMINATE)],
        id="the drain timeout ends a drain that never goes quiet",
    ),
    pytest.param(
        [UP, StopAsked(2), StopAsked(3)],
        Phase.STOPPING,
        [DROP, (3, Effect.TERMINATE)],
        id="a second signal is obeyed at once",
    ),
    pytest.param(
        [UP, StopAsked(2), StopAsked(3), StopAsked(4), StopAsked(5)],
        Phase.STOPPING,
        [DROP, (3, Effect.TERMINATE), (4, Effect.KILL)],
        id="a third signal kills, once",
    ),
    pytest.param(
        [StopAsked(1), Tick(5.9), Tick(6), Tick(7)],
        Phase.STOPPING,
        [(1, Effect.TERMINATE), (6, Effect.KILL)],
        id="an engine that outlives SIGTERM is killed at its deadline",
    ),
    pytest.param(
        [UP, HangSeen(2)], Phase.STOPPING, [DROP, (2, Effect.KILL)], id="a hang is killed"
    ),
    pytest.param(
        [UP, EngineEnded(2, -9), StopAsked(3), Tick(99)],
        Phase.ENDED,
        [DROP],
        id="nothing is done to an engine that has ended",
    ),
]


@pytest.mark.parametrize(("events", "phase", "effects"), TABLE)
def test_rules(events, phase, effects):
    got_phase, _, got_effects = play(*events)
    assert (got_phase, got_effects) == (phase, effects)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        pytest.param([EngineEnded(1, 1)], Why.NOBODY, id="by itself"),
        pytest.param([StopAsked(1), EngineEnded(2, 0)], Why.BEFORE_UP, id="before it was up"),
        pytest.param([UP, StopAsked(2), EngineEnded(3, 1)], Why.NOBODY, id="crash in a drain"),
        pytest.param([UP, HangSeen(2), EngineEnded(3, -9)], Why.HANG, id="hang"),
    ],
)
def test_why(events, why):
    assert play(*events)[1] is why


def _event(at, kind, busy):
    makers = {
        "healthy": lambda: EngineHealthy(at),
        "work": lambda: WorkSeen(at, busy),
        "asked": lambda: StopAsked(at),
        "hang": lambda: HangSeen(at),
        "tick": lambda: Tick(at),
        "ended": lambda: EngineEnded(at, 0),
    }
    return makers[kind]()


KINDS = st.sampled_from(["healthy", "work", "work", "work", "tick", "tick", "asked", "ended"])
STEPS = st.lists(
    st.tuples(st.floats(0.01, 3.0), KINDS, st.sampled_from([True, False, None])), max_size=40
)


@given(STEPS)
def test_an_engine_with_work_gets_its_signal_only_by_deadline_or_second_signal(steps):
    state, at, asked = State(), 0.0, 0
    for pause, kind, busy in steps:
        at += pause
        before = state
        asked += kind == "asked"
        state, effects = advance(state, _event(at, kind, busy), LIMITS)
        if Effect.TERMINATE not in effects or not before.was_up:
            continue
        by_deadline = at - before.drain_since >= LIMITS.drain_s
        assert by_deadline or asked >= 2 or (kind == "work" and busy is False)


@given(STEPS)
def test_whatever_comes_once_asked_twice_it_ends_within_its_deadlines(steps):
    state, at = State(), 0.0
    for pause, kind, busy in steps:
        at += pause
        if kind != "ended":
            state, _ = advance(state, _event(at, kind, busy), LIMITS)
    for pause in (0.0, 0.0, LIMITS.stop_s):
        at += pause
        state, effects = advance(state, StopAsked(at), LIMITS)
    assert state.killed or Effect.KILL in effects


@pytest.mark.parametrize(
    ("events", "want"),
    [
        pytest.param([UP], (Phase.TESTING, [(1, Effect.TEST)]), id="healthy is not up yet"),
        pytest.param(
            [UP, UP, SmokeEnded(2, "")],
            (Phase.UP, [(1, Effect.TEST), (2, Effect.DROP_CACHE)]),
            id="a good answer makes it up, and it is asked once",
        ),
        pytest.param(
            [UP, SmokeEnded(2, "no words")],
            (Phase.STOPPING, [(1, Effect.TEST), (2, Effect.TERMINATE)]),
            id="a bad answer stops it",
        ),
        pytest.param(
            [UP, StopAsked(2), SmokeEnded(3, "")],
            (Phase.STOPPING, [(1, Effect.TEST), (2, Effect.TERMINATE)]),
            id="what is told to stop meanwhile stops",
        ),
    ],
)
def test_a_smoke_test_stands_between_healthy_and_up(events, want):
    phase, _, effects = play_tested(*events)
    assert (phase, effects) == want
