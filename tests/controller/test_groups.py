"""Do the Runners of a group count as one: admitted, fetched, failed and lost together?"""

from dataclasses import replace
from typing import Any

import pytest

from berth.api.runner import GroupMember
from berth.api.runner import Runner as RunnerObject
from berth.controller.groups import as_groups
from berth.controller.observe_runners import Entry
from berth.manifests.pod import HEAD_VARIABLE, runner_pod
from berth.planner.state import Runner, Stage
from berth.reasons import Reason
from builders import NOW
from builders import runner as seen_runner
from controller.objects import runner


def member(
    rank: int, stage: Stage = Stage.UP, *, size: int = 2, **more: Any
) -> tuple[Entry, Runner]:
    name = f"g-0-0-r{rank}" if rank else "g-0-0"
    group = {"head": "g-0-0", "rank": rank, "size": size}
    obj = RunnerObject.model_validate(runner(name, of="g", node=f"n{rank}", group=group))
    entry = Entry(obj.metadata.uid, obj, None, stage)
    return entry, seen_runner("g", uid=entry.uid, on=f"n{rank}", stage=stage, **more)


def head_of(*members: tuple[Entry, Runner]) -> Runner:
    return as_groups([e for e, _ in members], [r for _, r in members])[0]


CRASHED = member(1, Stage.FAILED, exit_reason=Reason.CRASHED, exit_message="exit code 1")


@pytest.mark.parametrize(
    ("members", "want"),
    [
        pytest.param((member(0), member(1)), (Stage.UP, None), id="whole"),
        pytest.param((member(0), CRASHED), (Stage.FAILED, Reason.CRASHED), id="one crashed"),
        pytest.param(
            (member(0), member(1, Stage.LOST)), (Stage.LOST, Reason.NODE_LOST), id="a node lost"
        ),
        pytest.param((member(0),), (Stage.FAILED, Reason.INTERRUPTED), id="one is missing"),
        pytest.param(
            (member(0), member(1, Stage.STOPPING)), (Stage.FAILED, Reason.INTERRUPTED),
            id="one was deleted by somebody",
        ),
        pytest.param(
            (member(0, Stage.STOPPING), member(1, Stage.FAILED)), (Stage.STOPPING, None),
            id="it is ending anyway",
        ),
    ],
)  # fmt: skip
def test_the_head_tells_for_all(
    members: tuple[tuple[Entry, Runner], ...], want: tuple[Stage, Reason | None]
) -> None:
    head = head_of(*members)
    assert (head.stage, head.exit_reason) == want


def test_admitted_when_all_are_and_no_longer_than_the_first_of_them() -> None:
    one, two = member(0, Stage.RESERVED), member(1, Stage.RESERVED)
    early = (one[0], replace(one[1], admitted_until=NOW + 20))
    late = (two[0], replace(two[1], admitted_until=NOW + 50))
    assert head_of(early, two).admitted_until is None
    assert head_of(early, late).admitted_until == NOW + 20
    refused = (two[0], replace(two[1], admission_refused=Reason.MEMORY))
    assert head_of(early, refused).admission_refused is Reason.MEMORY


def test_files_are_there_when_every_node_has_them() -> None:
    one, two = member(0, Stage.PREPARING, fetched=True), member(1, Stage.PREPARING)
    assert not head_of(one, two).fetched
    assert head_of(one, (two[0], replace(two[1], fetched=True))).fetched


def test_a_member_without_its_head_belongs_to_nobody_and_still_counts() -> None:
    (alone,) = as_groups([member(1)[0]], [member(1)[1]])
    assert alone.part_of == "ns/g-0-0"
    assert alone.claim == member(1)[1].claim


def test_the_others_are_told_the_heads_address_and_the_head_asks_its_own_pod() -> None:
    def env(rank: int, address: str = "") -> list[dict[str, Any]]:
        obj = RunnerObject.model_validate(runner("g", group={"head": "g", "rank": rank, "size": 2}))
        found: list[dict[str, Any]] = runner_pod(obj, head_address=address)["spec"]["containers"][
            0
        ]["env"]
        return found

    own = {"name": HEAD_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert env(0)[0] == own
    assert env(1, "10.0.0.7")[0] == {"name": HEAD_VARIABLE, "value": "10.0.0.7"}
    assert GroupMember(head="g", rank=1, size=2).rank == 1
