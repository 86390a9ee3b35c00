"""Failures are counted once, outlive the leader, and end with a change, a wish by hand or steadiness."""

from typing import Any

from berth.api.meta import timestamp
from berth.api.model import Model
from berth.controller.history import History
from berth.controller.outcomes import Outcome
from berth.reasons import Reason
from controller.objects import NOW, model

CRASH = Outcome(Reason.CRASHED, "it crashed")


def _model(generation: int = 1, **status: Any) -> Model:
    return Model.model_validate(model(meta={"generation": generation}, status=status))


def _failed(times: int) -> History:
    history = History()
    history.adopt(_model())
    for number in range(times):
        history.failed("ns/m", f"u{number}", CRASH, node="a", now=NOW)
    return history


def test_a_runner_fails_once_however_often_it_is_looked_at() -> None:
    history = History()
    history.adopt(_model())
    assert history.failed("ns/m", "u1", CRASH, node="a", now=NOW)
    assert not history.failed("ns/m", "u1", CRASH, node="a", now=NOW + 1)
    assert history.restarts("ns/m", NOW).count == 1


def test_the_pause_doubles() -> None:
    history = _failed(3)
    assert history.restarts("ns/m", NOW).next_retry == NOW + 4


def test_a_new_leader_goes_on_with_the_pause_that_the_old_one_noted() -> None:
    history = History()
    history.adopt(_model(observedGeneration=1, restarts=4, nextRetry=timestamp(NOW + 8)))
    restarts = history.restarts("ns/m", NOW)
    assert (restarts.count, restarts.next_retry) == (4, NOW + 8)


def test_a_changed_model_starts_anew() -> None:
    history = _failed(3)
    history.adopt(_model(generation=2))
    assert history.restarts("ns/m", NOW).count == 0


def test_a_load_by_hand_tries_at_once_and_each_asking_does_so_once() -> None:
    history = _failed(3)
    history.asked_by_hand("ns/m", NOW + 1)
    assert history.restarts("ns/m", NOW).next_retry is None
    history.failed("ns/m", "u9", CRASH, node="a", now=NOW + 2)
    history.asked_by_hand("ns/m", NOW + 1)
    assert history.restarts("ns/m", NOW).count == 1


def test_a_minute_up_forgets_the_failures() -> None:
    history = _failed(2)
    history.steady("ns/m", NOW, NOW + 59)
    assert history.restarts("ns/m", NOW).count == 2
    history.steady("ns/m", NOW, NOW + 60)
    assert history.restarts("ns/m", NOW).count == 0


def test_a_place_that_could_not_take_it_is_left_out_for_a_while() -> None:
    history = History()
    history.adopt(_model())
    history.failed("ns/m", "u", Outcome(Reason.UNSCHEDULABLE, ""), node="a", now=NOW)
    assert history.restarts("ns/m", NOW).excluded == (("a", NOW + 60),)
    assert history.restarts("ns/m", NOW + 61).excluded == ()
    assert history.restarts("ns/m", NOW).count == 0


def test_a_place_is_freed_when_its_runner_is_no_longer_seen() -> None:
    history = History()
    history.saw_runners({"u": ("a", ("GPU-1",))}, NOW)
    history.saw_runners({}, NOW + 3)
    assert history.recently_freed() == {"a/GPU-1": NOW + 3}
