"""Residencies and Profiles in short."""

from berth.api.profile import Profile
from berth.api.residency import Residency
from berth.controller.status_others import profile_status, residency_status
from berth.planner.actions import PlaceNo, Plan, Refuse
from berth.planner.state import Claim, Device, Node, Policy, Runner, Stage, State
from berth.reasons import Reason
from berth.units import Bytes
from controller.objects import GIB, NOW, meta, residency


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


def test_a_residency_says_whether_its_copies_fit() -> None:
    node = Node(
        "a", Bytes(64 * GIB), Bytes(60 * GIB), policy=Policy(name="r", host_weights=Bytes(GIB))
    )
    state = State(now=NOW, epoch=1, nodes=(node,))
    subject = Residency.model_validate(residency("r"))

    def said(warning: tuple[Reason, str] | None) -> list[tuple[str, str]]:
        status = residency_status(subject, state, Plan(), NOW, warning=warning)
        return [(c.status, c.reason) for c in status.conditions if c.type == "HostCopies"]

    assert said(None) == [("True", "CopiesFit")]
    cut = (Reason.BUDGET_CUT, "a: the budget is cut")
    assert said(cut) == [("False", "BudgetAboveHostMemory")]
    bare = Node("a", Bytes(64 * GIB), Bytes(60 * GIB), policy=Policy(name="r"))
    state = State(now=NOW, epoch=1, nodes=(bare,))
    assert said(None) == []
