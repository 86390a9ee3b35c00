"""Holds, Residencies and Profiles in short."""

from typing import Any

from berth.api.hold import Hold
from berth.api.meta import timestamp
from berth.api.profile import Profile
from berth.api.residency import Residency
from berth.controller.sightings import Sightings
from berth.controller.status_others import HoldView, hold_status, profile_status, residency_status
from berth.planner.actions import PlaceNo, Plan, Refuse
from berth.planner.state import Claim, Device, Node, Policy, Runner, Stage, State
from berth.reasons import Reason
from berth.units import Bytes
from controller.objects import GIB, NOW, hold, meta, residency

HERE = HoldView(("a",), occupied=0)


def _said(
    sightings: Sightings, now: float = NOW, view: HoldView = HERE, **spec: Any
) -> dict[str, tuple[str, str]]:
    status = hold_status(Hold.model_validate(hold("h", **spec)), view, sightings, now)
    return {c.type: (c.status, c.reason) for c in status.conditions}


def test_a_hold_is_held_once_its_nodes_are_empty() -> None:
    busy = HoldView(("a",), occupied=2)
    assert _said(Sightings(), view=busy, nodes=["a"])["Held"] == ("False", "Held")
    assert _said(Sightings(), nodes=["a"])["Held"] == ("True", "Held")


def test_a_holder_that_renews_must_go_on_renewing() -> None:
    sightings, first = Sightings(), {"nodes": ["a"], "renewTime": timestamp(NOW)}
    assert "Expired" not in _said(sightings, NOW, **first)
    assert "Expired" not in _said(sightings, NOW + 2399, **first)
    again = first | {"renewTime": timestamp(NOW + 99)}
    assert "Expired" not in _said(sightings, NOW + 2401, **again)
    assert _said(sightings, NOW + 4801, **again)["Expired"] == ("True", "Expired")


def test_a_hold_without_a_renewing_holder_ends_with_its_budget() -> None:
    sightings = Sightings()
    assert "Expired" not in _said(sightings, NOW, nodes=["a"], budget="10m")
    assert _said(sightings, NOW + 600, nodes=["a"], budget="10m")["Held"] == ("False", "Expired")


def test_an_expired_hold_stays_expired() -> None:
    over = [
        {
            "type": "Expired",
            "status": "True",
            "reason": "Expired",
            "lastTransitionTime": timestamp(NOW - 5),
        }
    ]
    said = _said(Sightings(), nodes=["a"], conditions=over)
    assert said["Expired"] == ("True", "Expired")
    assert said["Held"][0] == "False"


def test_a_residency_sums_up_its_own_nodes_and_remembers_who_was_refused() -> None:
    gpu = Device("GPU-1", 0, Bytes(24 * GIB))
    state = State(
        now=NOW,
        epoch=1,
        nodes=(
            Node("a", Bytes(64 * GIB), Bytes(0), devices=(gpu,), policy=Policy(name="mine")),
            Node("b", Bytes(99 * GIB), Bytes(0)),
        ),
        runners=(
            Runner(
                "u", "r", "ns/m", "a", Claim(Bytes(GIB), (("GPU-1", Bytes(8 * GIB)),)), Stage.UP
            ),
        ),
    )
    refusal = Refuse("ns/n", Reason.MEMORY, "no", (PlaceNo("a", "", Reason.MEMORY),))
    found = Residency.model_validate(residency("mine"))
    status = residency_status(found, state, Plan((refusal,)), NOW)
    assert (status.nodes, status.runners) == (1, 1)
    assert (status.host_capacity, status.host_claimed) == (64 * GIB, GIB)
    assert (status.device_capacity, status.device_claimed) == (24 * GIB, 8 * GIB)
    assert [(m.model, m.claim, m.loaded) for m in status.models] == [("ns/m", 9 * GIB, True)]
    assert [r.model for r in status.refusals] == ["ns/n"]
    again = found.model_copy(update={"status": status})
    assert residency_status(again, state, Plan((refusal,)), NOW + 60) == status


def test_a_profile_counts_its_models() -> None:
    found = Profile.model_validate({"metadata": meta("p", "ns"), "spec": {}})
    status = profile_status(found, 3, NOW)
    assert (status.models, status.observed_generation) == (3, 1)
