"""Who waits, since when, and when was a model last used? Other clocks are shown, never compared."""

from typing import Any

import pytest

from berth.api.demand import Demand
from berth.api.meta import timestamp
from berth.api.model import Model
from berth.api.runner import Runner
from berth.controller.history import History
from berth.controller.memo import Memo
from berth.controller.observe_models import Defaults, dead_gateways, observe_model
from berth.controller.outcomes import Outcome
from berth.controller.priced import Priced
from berth.controller.sightings import Sightings
from berth.planner.state import Model as Seen
from berth.planner.state import Need
from berth.reasons import Reason
from berth.units import Bytes
from controller.objects import GIB, NOW, demand, model, runner

PRICED = Priced(settings_hash="s", needs=(Need(Bytes(GIB)),))


def _see(
    sightings: Sightings,
    raw: dict[str, Any] | None,
    now: float = NOW,
    *,
    history: History | None = None,
    **spec: Any,
) -> Seen:
    return observe_model(
        Model.model_validate(model(**spec)),
        Demand.model_validate(raw) if raw else None,
        PRICED,
        sightings=sightings,
        history=history or History(),
        memo=Memo(),
        defaults=Defaults(),
        now=now,
    )


def _waiting(beat: int, requests: int = 1, gateway: str = "g1", since: str = "x") -> dict[str, Any]:
    return {"gateway": gateway, "requests": requests, "since": since, "beat": beat}


def test_requests_of_all_gateways_wait_since_the_first_was_seen() -> None:
    sightings = Sightings()
    _see(sightings, demand(waiting=[_waiting(1)]), NOW)
    seen = _see(sightings, demand(waiting=[_waiting(2), _waiting(1, 3, "g2")]), NOW + 5)
    assert (seen.waiting, seen.waiting_since) == (4, NOW)


def test_a_gateway_that_beats_no_more_is_ignored_after_15_s_and_dead_after_60() -> None:
    sightings = Sightings()
    raw = demand(waiting=[_waiting(1), _waiting(1, gateway="g2")])
    assert _see(sightings, raw, NOW).waiting == 2
    raw = demand(waiting=[_waiting(1), _waiting(4, gateway="g2")])
    assert _see(sightings, raw, NOW + 15).waiting == 1
    raw = demand(waiting=[_waiting(1), _waiting(15, gateway="g2")])
    found = Demand.model_validate(raw)
    assert dead_gateways("ns/m", found, sightings, NOW + 59) == ()
    assert dead_gateways("ns/m", found, sightings, NOW + 60) == ("g1",)


@pytest.mark.parametrize(
    ("said", "idle", "want"),
    [
        pytest.param(NOW - 60, "30m", NOW - 60, id="a minute ago is a minute ago"),
        pytest.param(NOW - 9999, "30m", NOW - 1710, id="never so long ago that 90 s are not left"),
        pytest.param(NOW + 500, "30m", NOW, id="never in the future"),
        pytest.param(NOW - 60, "60s", NOW, id="a short timeout starts anew"),
        pytest.param(NOW - 9999, "0", NOW - 9999, id="never unloaded: only the order counts"),
    ],
)
def test_use_at_first_sight(said: float, idle: str, want: float) -> None:
    seen = _see(Sightings(), demand(used=timestamp(said)), idleTimeout=idle)
    assert seen.used == want


def test_use_that_changes_is_now_whatever_the_gateways_clock_says() -> None:
    sightings = Sightings()
    _see(sightings, demand(used=timestamp(NOW - 60)), NOW)
    seen = _see(sightings, demand(used=timestamp(NOW - 50)), NOW + 7)
    assert seen.used == NOW + 7
    assert _see(sightings, demand(used=timestamp(NOW - 50)), NOW + 99).used == NOW + 7


def test_never_used_is_never() -> None:
    assert _see(Sightings(), demand()).used == 0.0
    assert _see(Sightings(), None).used == 0.0


def test_a_wish_by_hand_counts_until_it_was_handled() -> None:
    sightings, wish = Sightings(), {"berth.dev/load-requested": "t1"}
    assert _see(sightings, None, NOW, annotations=wish).load_asked == NOW
    assert _see(sightings, None, NOW + 9, annotations=wish).load_asked == NOW
    handled = _see(sightings, None, annotations=wish, status={"loadHandled": "t1"})
    assert handled.load_asked is None


def test_the_larger_of_minimum_and_maximum_bounds_the_replicas() -> None:
    assert _see(Sightings(), None, minReplicas=3).max_replicas == 3


def test_what_was_measured_and_what_was_killed_enlarge_the_need() -> None:
    history = History()
    history.adopt(Model.model_validate(model()))
    seen = {"agent": {"memory": {"host": GIB * 3 // 2}}}
    took = Runner.model_validate(runner(settingsHash="s", status=seen))
    history.measurements.saw("ns/m", took, {})
    assert _see(Sightings(), None, history=history).needs[0].host == GIB * 3 // 2
    history.failed("ns/m", "u", Outcome(Reason.OOM_KILLED, ""), node="a", now=NOW)
    assert _see(Sightings(), None, history=history).needs[0].host > GIB * 3 // 2
