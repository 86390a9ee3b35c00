"""What runners took is kept with the Model, counts when it is larger, and no freak counts for ever."""

from typing import Any

import pytest

from berth.api.model import Model
from berth.api.runner import Runner
from berth.controller.measurements import RUNS_KEPT, WAYS_KEPT, Measurements
from berth.planner.state import Need
from berth.units import Bytes
from controller.objects import GIB, MIB, model, runner

CARD = {"host": GIB, "devices": [{"device": "GPU-1", "memory": 4 * GIB}]}
NAMES = {"GPU-1": "Card A", "GPU-2": "Card B"}
NEED = Need(Bytes(GIB), (Bytes(4 * GIB),), variant="cuda")


def _took(uid: str, host: int, device: int | None = None, *, peak: int = 0, **spec: Any) -> Runner:
    """A runner on GPU-1 (on the CPU without a device figure) that holds so much."""
    uses = [] if device is None else [{"device": "GPU-1", "used": device, "peak": peak or device}]
    claim = {"host": GIB} if device is None else CARD
    memory = {"host": host, "devices": uses}
    return Runner.model_validate(
        runner(
            meta={"uid": uid},
            status={"agent": {"memory": memory}},
            claim=claim,
            **({"variant": "cuda"} | spec),
        )
    )


def _seen(*runners: Runner) -> Measurements:
    found = Measurements()
    for one in runners:
        found.saw("ns/m", one, NAMES)
    return found


def _larger(found: Measurements, need: Need = NEED, settings: str = "s1") -> tuple[int, ...]:
    larger = found.larger("ns/m", settings, need)
    return (larger.host, *larger.gpus)


def test_the_peak_of_a_device_and_the_working_set_of_the_host_count() -> None:
    found = _seen(_took("u1", 2 * GIB, 3 * GIB, peak=5 * GIB))
    assert _larger(found) == (2 * GIB, 5 * GIB)


def test_a_need_is_never_made_smaller() -> None:
    assert _larger(_seen(_took("u1", MIB, MIB))) == (GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("need", "settings"),
    [
        pytest.param(NEED, "s2", id="other settings"),
        pytest.param(Need(Bytes(GIB), variant="cpu"), "s1", id="another way to launch"),
    ],
)
def test_what_was_measured_says_nothing_of(need: Need, settings: str) -> None:
    found = _seen(_took("u1", 2 * GIB, 5 * GIB))
    assert _larger(found, need, settings) == (need.host, *need.gpus)


def test_of_several_kinds_of_device_the_one_that_took_most_counts() -> None:
    other = {"host": GIB, "devices": [{"device": "GPU-2", "memory": 4 * GIB}]}
    memory = {"host": GIB, "devices": [{"device": "GPU-2", "used": 7 * GIB}]}
    far = runner(
        meta={"uid": "u2"}, variant="cuda", status={"agent": {"memory": memory}}, claim=other
    )
    found = _seen(_took("u1", GIB, 5 * GIB), Runner.model_validate(far))
    assert [each.device for each in found.told("ns/m")] == ["Card A", "Card B"]
    assert _larger(found) == (GIB, 7 * GIB)


def test_one_freak_is_left_out_once_two_others_say_otherwise() -> None:
    freak, usual = _took("u1", 2 * GIB, 7 * GIB), 5 * GIB
    assert _larger(_seen(freak))[1] == 7 * GIB
    assert _larger(_seen(freak, _took("u2", GIB, usual)))[1] == 7 * GIB
    assert _larger(_seen(freak, _took("u2", GIB, usual), _took("u3", GIB, usual)))[1] == usual


def test_two_freaks_are_forgotten_with_the_runs_that_are_no_longer_kept() -> None:
    runs = [_took(f"u{n}", GIB, (7 if n < 2 else 5) * GIB) for n in range(RUNS_KEPT + 1)]
    assert _larger(_seen(*runs[:RUNS_KEPT]))[1] == 7 * GIB
    assert _larger(_seen(*runs))[1] == 5 * GIB


def test_a_wild_figure_is_cut_at_twice_the_estimate() -> None:
    assert _larger(_seen(_took("u1", GIB, 90 * GIB)))[1] == 8 * GIB


def test_what_was_told_is_taken_up_by_the_next_leader() -> None:
    first = _seen(_took("u1", 2 * GIB, 5 * GIB))
    said = [each.wire() for each in first.told("ns/m")]
    heir = Measurements()
    heir.adopt(Model.model_validate(model(status={"measured": said})))
    assert heir.told("ns/m") == first.told("ns/m")
    assert _larger(heir) == (2 * GIB, 5 * GIB)


def test_only_a_rise_by_a_quantum_is_news() -> None:
    found = _seen(_took("u1", 2 * GIB, 5 * GIB))
    before = found.told("ns/m")
    for host, device in ((2 * GIB + 63 * MIB, 5 * GIB), (GIB, 4 * GIB)):
        found.saw("ns/m", _took("u1", host, device), NAMES)
        assert found.told("ns/m") == before
    found.saw("ns/m", _took("u1", 2 * GIB + 65 * MIB, 5 * GIB), NAMES)
    assert found.told("ns/m") != before


def test_what_is_kept_is_bounded_and_the_latest() -> None:
    found = _seen(*(_took(f"u{n}", GIB, settingsHash=f"s{n}") for n in range(WAYS_KEPT + 3)))
    assert {each.settings for each in found.told("ns/m")} == {
        f"s{n}" for n in range(3, WAYS_KEPT + 3)
    }
    found.keep_only(set())
    assert found.models() == []


def test_the_error_of_the_estimate_is_a_share_by_place() -> None:
    found = _seen(_took("u1", GIB // 2, 5 * GIB))
    assert list(found.ratios("ns/m", "s1", NEED)) == [("host", 0.5), ("device", 1.25)]
    assert list(found.ratios("ns/m", "s2", NEED)) == []
