"""When is a runner healthy, silent, hung? Looks in order, and the state after each (C2, C5)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.agent.health import Counters, Look, Pulse, next_pulse

LOADING = Look(healthy=False, loading=True, busy=0)
NOBODY = Look(healthy=False, loading=True)
IDLE = Look(healthy=True, busy=0, progress={"tokens": 7})
UNKNOWN = Look(healthy=True)


def busy(tokens: int, *, healthy: bool = True) -> Look:
    return Look(healthy=healthy, busy=1, progress={"tokens": tokens})


def states(
    *looks: Look, every: float = 5.0, hang: float = 120.0, draining: bool = False
) -> list[str]:
    pulse, found = Pulse(), []
    for number, look in enumerate(looks):
        pulse = next_pulse(pulse, look, now=number * every, hang_s=hang, draining=draining)
        found.append(pulse.state)
    return found


def last(*looks: Look, **how) -> str:
    return states(*looks, **how)[-1]


@pytest.mark.parametrize(
    ("looks", "want"),
    [
        pytest.param([NOBODY], "Starting", id="nothing listens yet"),
        pytest.param([LOADING] * 400, "Starting", id="a load of half an hour is no hang"),
        pytest.param([LOADING, IDLE], "Ready", id="up"),
        pytest.param([IDLE] * 100, "Ready", id="idle for long"),
        pytest.param([IDLE, NOBODY, NOBODY], "Ready", id="two failed checks are nothing"),
        pytest.param([IDLE, NOBODY, NOBODY, NOBODY], "Silent", id="three are silence"),
        pytest.param([IDLE] + [NOBODY] * 23, "Silent", id="silence short of the timeout"),
        pytest.param([IDLE] + [NOBODY] * 24, "Hung", id="three failed checks and 120 s of silence"),
        pytest.param([IDLE, NOBODY, NOBODY, NOBODY, IDLE], "Ready", id="it was only slow"),
        pytest.param([IDLE] + [busy(7)] * 23, "Ready", id="busy for less than the timeout"),
        pytest.param([IDLE] + [busy(7)] * 24, "Hung", id="busy without progress"),
        pytest.param([IDLE] + [busy(8 + n) for n in range(99)], "Ready", id="busy and progressing"),
        pytest.param(
            [IDLE] + [busy(8 + n, healthy=False) for n in range(99)],
            "Ready",
            id="progressing, however slow the health path is",
        ),
        pytest.param([UNKNOWN] * 99, "Ready", id="an engine that tells nothing but its health"),
        pytest.param(
            [busy(1)] + [Look(healthy=True)] * 25, "Hung", id="busy, and then it tells nothing more"
        ),
    ],
)
def test_states(looks: list[Look], want: str):
    assert last(*looks) == want


def test_a_draining_runner_is_never_called_hung():
    assert last(IDLE, *[busy(7)] * 200, draining=True) == "Ready"
    assert last(IDLE, *[NOBODY] * 200, draining=True) == "Silent"


def computing(tokens: int = 7) -> Look:
    return replace(busy(tokens), computing=True)


@pytest.mark.parametrize(
    ("looks", "want"),
    [
        pytest.param([IDLE] + [computing()] * 200, "Ready", id="a batch of many minutes on a CPU"),
        pytest.param([IDLE] + [computing()] * 265, "Hung", id="not for ever: it runs in circles"),
        pytest.param(
            [IDLE] + ([computing()] * 200 + [computing(8)]) * 2, "Ready", id="batch after batch"
        ),
        pytest.param(
            [IDLE] + [computing()] * 99 + [busy(7)] * 24, "Hung", id="it stopped computing"
        ),
    ],
)
def test_an_engine_that_computes_on_cpus(looks: list[Look], want: str):
    assert last(*looks) == want


def test_a_hang_that_was_told_stands_until_there_is_a_sign_of_life():
    told = Pulse(state="Hung", was_ready=True, busy=1, alive_at=100.0)
    still = next_pulse(told, busy(7), now=101.0, hang_s=120, draining=False)
    assert still.state == "Hung"
    alive = next_pulse(still, busy(8), now=102.0, hang_s=120, draining=False)
    assert alive.state == "Ready"


def test_figures_that_come_and_go_are_no_progress():
    with_slots = Look(healthy=True, busy=1, progress={"tokens": 7, "decoded": 3})
    without = Look(healthy=True, busy=1, progress={"tokens": 7})
    assert last(IDLE, *[with_slots, without] * 12) == "Hung"


def test_an_engine_that_does_not_answer_is_as_busy_as_it_was():
    pulse = next_pulse(Pulse(), busy(1), now=0, hang_s=120, draining=False)
    after = next_pulse(pulse, NOBODY, now=5, hang_s=120, draining=False)
    assert (after.busy, after.failed_checks) == (1, 1)


def test_counters_are_kept_while_none_can_be_read():
    first = Look(healthy=True, busy=0, counters=Counters(tokens=5))
    pulse = next_pulse(Pulse(), first, now=0, hang_s=120, draining=False)
    assert next_pulse(pulse, NOBODY, now=5, hang_s=120, draining=False).counters.tokens == 5


looks = st.builds(
    Look,
    healthy=st.booleans(),
    loading=st.booleans(),
    busy=st.none() | st.integers(0, 3),
    progress=st.dictionaries(st.sampled_from(["tokens", "decoded"]), st.integers(0, 3)),
)


@given(st.lists(looks, min_size=1, max_size=40))
def test_nothing_hangs_within_the_timeout_of_a_sign_of_life(given_looks: list[Look]):
    pulse, previous = Pulse(), Pulse()
    for number, look in enumerate(given_looks):
        previous, now = pulse, number * 5.0
        pulse = next_pulse(pulse, look, now=now, hang_s=20.0, draining=False)
        advanced = any(
            k in previous.progress and previous.progress[k] != v for k, v in look.progress.items()
        )
        if advanced or not pulse.was_ready:
            assert pulse.state != "Hung"
        if pulse.state == "Hung":
            # pulse.alive_at is 0.0 at the first look here, as time is.
            assert now - pulse.alive_at >= 20.0
