"""When has a draining runner come to rest?"""

import pytest

from berth.agent.health import Look
from berth.agent.quiet import Rest, next_rest

IDLE, BUSY = Look(healthy=True, busy=0), Look(healthy=True, busy=2)
DUMB = Look(healthy=True)
NOBODY = Look(healthy=False, loading=True)
OLD = Rest(since=5.0, order="first")


@pytest.mark.parametrize(
    ("rest", "look", "was_ready", "ended", "want"),
    [
        pytest.param(None, IDLE, True, False, Rest(9.0, "first"), id="idle"),
        pytest.param(OLD, IDLE, True, False, OLD, id="still idle: since is kept"),
        pytest.param(OLD, BUSY, True, False, None, id="busy again: taken back"),
        pytest.param(None, BUSY, True, False, None, id="busy"),
        pytest.param(
            OLD, NOBODY, True, False, None, id="no answer from one that was up is no rest"
        ),
        pytest.param(OLD, DUMB, True, False, None, id="nor is an answer that says nothing"),
        pytest.param(
            None, NOBODY, False, False, Rest(9.0, "first"), id="never up: nothing was sent"
        ),
        pytest.param(None, None, False, False, Rest(9.0, "first"), id="no address yet"),
        pytest.param(None, None, True, False, None, id="was up, and no address now"),
        pytest.param(None, None, True, True, Rest(9.0, "first"), id="it has ended"),
        pytest.param(Rest(5.0, "zero"), IDLE, True, False, Rest(9.0, "first"), id="a new order"),
    ],
)
def test_rest(rest, look, was_ready, ended, want):
    assert next_rest(rest, look, order="first", was_ready=was_ready, ended=ended, now=9.0) == want
