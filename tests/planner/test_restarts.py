"""When is a model that failed tried again, where not, and with how much more memory?"""

import pytest

from berth.planner.restarts import after_oom, backoff_s, larger_need, next_restart, settled
from berth.planner.state import Claim, Restarts
from berth.reasons import Reason
from builders import NOW, gib, need


def test_restarts_back_off_from_a_second_to_a_minute() -> None:
    assert [backoff_s(count) for count in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff_s(10_000) == 60


def test_each_failure_in_a_row_counts() -> None:
    record = Restarts()
    for _ in range(3):
        record = next_restart(record, now=NOW, reason=Reason.CRASHED, node="n", message="exit 1")
    assert record == Restarts(3, NOW, NOW + 4, Reason.CRASHED, "exit 1")


def test_a_failure_long_ago_is_forgotten() -> None:
    old = Restarts(count=6, last_failed=NOW - 700)
    assert next_restart(old, now=NOW, reason=Reason.CRASHED).count == 1


@pytest.mark.parametrize("reason", [Reason.BAD_FLAGS, Reason.WRONG_DEVICE, Reason.MISSING_FILE])
def test_some_failures_need_the_user(reason: Reason) -> None:
    assert next_restart(Restarts(), now=NOW, reason=reason).terminal


@pytest.mark.parametrize("reason", [Reason.NO_MEMORY, Reason.UNSCHEDULABLE, Reason.ADMISSION_ERROR])
def test_a_fault_of_the_place_excludes_it_and_counts_nothing(reason: Reason) -> None:
    record = next_restart(Restarts(count=2), now=NOW, reason=reason, node="gpu-1")
    assert (record.count, record.next_retry) == (2, None)
    assert record.excluded == (("gpu-1", NOW + 60),)


def test_exclusions_run_out() -> None:
    old = Restarts(excluded=(("gpu-1", NOW - 1), ("gpu-2", NOW + 1)))
    kept = next_restart(old, now=NOW, reason=Reason.NO_MEMORY, node="gpu-3").excluded
    assert kept == (("gpu-2", NOW + 1), ("gpu-3", NOW + 60))


@pytest.mark.parametrize(
    "reason", [Reason.NODE_LOST, Reason.NODE_DRAINED, Reason.IDLE, Reason.MAKE_ROOM]
)
def test_an_end_that_is_nobodys_fault_is_not_counted(reason: Reason) -> None:
    record = Restarts(count=2, last_failed=NOW - 5)
    assert next_restart(record, now=NOW, reason=reason) == record


def test_the_larger_of_estimate_and_measurement_counts() -> None:
    seen = Claim(gib(3), (("GPU-x", gib(9)),))
    assert larger_need(need(10, 2), seen) == need(10, 3)
    assert larger_need(need(8, 4), seen) == need(9, 4)
    assert larger_need(need(8, 4), None) == need(8, 4)


def test_a_wild_measurement_is_cut_at_twice_the_estimate() -> None:
    assert larger_need(need(8, 4), Claim(gib(400), (("GPU-x", gib(400)),))) == need(16, 8)


def test_each_oom_kill_asks_for_a_quarter_more() -> None:
    assert after_oom(need(None, 8), 0) == need(None, 8)
    assert after_oom(need(None, 8), 2) == need(None, 12)
    assert after_oom(need(None, 1), 1) == need(None, 1.5)
    assert after_oom(need(None, 8), 50) == need(None, 16)


@pytest.mark.parametrize(
    ("peaks", "want"),
    [
        pytest.param((), 0, id="no run says nothing"),
        pytest.param((5,), 5, id="one run is believed"),
        pytest.param((5, 9), 9, id="of two the larger counts"),
        pytest.param((5, 9, 4), 5, id="of three the freak is left out"),
        pytest.param((9, 5, 9), 9, id="unless another one agrees"),
    ],
)
def test_what_the_last_runs_say_together(peaks: tuple[int, ...], want: int) -> None:
    assert settled(peaks) == want
