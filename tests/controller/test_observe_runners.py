"""How far is each ledger entry, and what does the planner get to know of it?"""

from typing import Any

import pytest

from berth.api.meta import timestamp
from berth.controller.observe_runners import Entry, entries, observe_runners
from berth.controller.sightings import Sightings
from berth.planner.state import HOST, Stage
from berth.planner.state import Runner as Seen
from berth.reasons import Reason
from controller.objects import GIB, NOW, node, pod, runner, store


def _look(sightings: Sightings | None = None, now: float = NOW, **kinds: Any) -> list[Entry]:
    kinds.setdefault("nodes", [node()])
    return entries(store(**kinds), sightings or Sightings(), now)


def _see(sightings: Sightings, now: float = NOW, **kinds: Any) -> Seen:
    found = _look(sightings, now, **kinds)
    return observe_runners(found, sightings, now)[0]


VERIFIED = {"agent": {"fetch": {"state": "Verified"}}}
FAILED_FETCH = {"agent": {"fetch": {"state": "Failed", "reason": "DiskFull", "message": "full"}}}
UNBOUND = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]}


@pytest.mark.parametrize(
    ("kinds", "want"),
    [
        pytest.param({"runners": [runner(stage="Preparing")]}, Stage.PREPARING, id="fetching"),
        pytest.param({"runners": [runner()]}, Stage.RESERVED, id="reserved, no pod yet"),
        pytest.param(
            {"runners": [runner()], "pods": [pod(ready=False)]}, Stage.STARTING, id="pod not ready"
        ),
        pytest.param({"runners": [runner()], "pods": [pod()]}, Stage.UP, id="pod ready"),
        pytest.param(
            {"runners": [runner(status={"upSince": timestamp(NOW)})], "pods": [pod(ready=False)]},
            Stage.UP,
            id="a saturated runner that misses a probe is still up",
        ),
        pytest.param(
            {"runners": [runner()], "pods": [pod(phase="Failed")]}, Stage.FAILED, id="pod ended"
        ),
        pytest.param(
            {"runners": [runner(status={"pod": "m-0"})]}, Stage.FAILED, id="its pod is gone"
        ),
        pytest.param(
            {"runners": [runner(stage="Preparing", status=FAILED_FETCH)]},
            Stage.FAILED,
            id="its files cannot be had",
        ),
        pytest.param({"pods": [pod()]}, Stage.STOPPING, id="a pod whose runner is gone"),
    ],
)
def test_stages(kinds: dict[str, Any], want: Stage) -> None:
    assert [entry.stage for entry in _look(**kinds)] == [want]


def test_a_deleted_pod_is_stopping_and_somebody_elses_doing_while_its_runner_stands() -> None:
    raw = pod()
    raw["metadata"]["deletionTimestamp"] = timestamp(NOW)
    seen = _see(Sightings(), runners=[runner()], pods=[raw])
    assert (seen.stage, seen.foreign_deletion, seen.exit_reason) == (Stage.STOPPING, True, None)


def test_runner_and_pod_are_one_entry_and_a_pod_alone_keeps_its_claim() -> None:
    found = _look(runners=[runner()], pods=[pod(), pod("gone-1")])
    seen = observe_runners(found, Sightings(), NOW)
    assert sorted((r.uid, r.claim.host) for r in seen) == [("uid-gone-1", GIB), ("uid-m-0", GIB)]


def test_a_pod_that_is_not_scheduled_in_30_s_has_failed_with_the_schedulers_words() -> None:
    sightings = Sightings()
    raw = pod(phase="Pending", ready=False, status=UNBOUND)
    raw["spec"]["nodeName"] = ""
    kinds = {"runners": [runner()], "pods": [raw]}
    assert _see(sightings, NOW, **kinds).stage is Stage.STARTING
    seen = _see(sightings, NOW + 30, **kinds)
    assert (seen.stage, seen.exit_reason) == (Stage.FAILED, Reason.UNSCHEDULABLE)
    assert "0/1 nodes" in seen.exit_message


@pytest.mark.parametrize(
    ("waiting", "want"),
    [
        ("ImagePullBackOff", Reason.IMAGE_PULL),
        ("CreateContainerConfigError", Reason.SECRET_NOT_FOUND),
    ],
)
def test_a_container_that_is_held_up_for_30_s_gives_its_place_to_other_loads(
    waiting: str, want: Reason
) -> None:
    state = {"waiting": {"reason": waiting, "message": "no"}}
    held = pod(phase="Pending", ready=False, status={"containerStatuses": [{"state": state}]})
    pulls = pod(phase="Pending", ready=False, status={})
    sightings = Sightings()
    assert _see(sightings, runners=[runner()], pods=[held]).stage is Stage.STARTING
    assert _see(sightings, NOW + 29, runners=[runner()], pods=[held]).stage is Stage.STARTING
    seen = _see(sightings, NOW + 30, runners=[runner()], pods=[held])
    assert (seen.stage, seen.exit_reason, seen.exit_message) == (Stage.FAILED, want, "no")
    # A large image takes as long as it takes.
    assert _see(sightings, NOW + 600, runners=[runner()], pods=[pulls]).stage is Stage.STARTING


def test_a_runner_is_lost_once_its_node_was_not_ready_for_a_minute() -> None:
    sightings = Sightings()
    kinds = {"runners": [runner()], "pods": [pod()], "nodes": [node(ready=False)]}
    assert _see(sightings, NOW, **kinds).stage is Stage.UP
    assert _see(sightings, NOW + 59, **kinds).stage is Stage.UP
    assert _see(sightings, NOW + 60, **kinds).stage is Stage.LOST


def _admitted(pass_id: str = "p1", at: float = NOW - 3600) -> dict[str, Any]:
    return {
        "agent": {
            "admission": {
                "state": "Admitted",
                "at": timestamp(at),
                "expiresAt": timestamp(at + 60),
                "passId": pass_id,
            }
        }
    }


def test_an_admission_lasts_from_when_it_is_seen_whatever_the_nodes_clock_says() -> None:
    sightings = Sightings()
    assert _see(sightings, NOW, runners=[runner(status=_admitted())]).admitted_until == NOW + 60
    later = _see(sightings, NOW + 50, runners=[runner(status=_admitted())])
    assert later.admitted_until == NOW + 60


def test_an_admission_of_another_pass_is_none() -> None:
    seen = _see(Sightings(), runners=[runner(status=_admitted("p0"))])
    assert seen.admitted_until is None


def test_quiet_counts_only_under_this_very_drain_order() -> None:
    order = {"reason": "Idle", "since": timestamp(NOW - 5), "deadline": timestamp(NOW + 300)}
    quiet = {"since": timestamp(NOW - 4), "drainSeen": order["since"]}
    said = runner(drain=order, status={"agent": {"quiet": quiet}})
    assert _see(Sightings(), runners=[said], pods=[pod()]).quiet_since == NOW
    other = runner(
        drain=order, status={"agent": {"quiet": quiet | {"drainSeen": timestamp(NOW - 99)}}}
    )
    assert _see(Sightings(), runners=[other], pods=[pod()]).quiet_since is None


def test_a_load_that_still_takes_memory_gets_more_time() -> None:
    sightings = Sightings()

    def held(host: int) -> dict[str, Any]:
        status = {"agent": {"memory": {"host": host}}}
        return {"runners": [runner(status=status)], "pods": [pod(ready=False)]}

    assert _see(sightings, NOW, **held(1)).load_deadline == NOW + 900
    assert _see(sightings, NOW + 100, **held(1)).load_deadline == NOW + 900
    assert _see(sightings, NOW + 200, **held(2)).load_deadline == NOW + 1100


def test_what_a_runner_holds_is_by_place() -> None:
    memory = {"host": 5, "devices": [{"device": "GPU-1", "used": 7}]}
    said = runner(status={"agent": {"memory": memory, "health": {"busy": 2}}})
    seen = _see(Sightings(), runners=[said], pods=[pod()])
    assert (seen.measured, seen.busy) == (((HOST, 5), ("GPU-1", 7)), 2)


def test_mounted_files_need_no_fetch() -> None:
    assert _see(Sightings(), runners=[runner(mount={"hostPath": "/m"})]).fetched
    assert _see(Sightings(), runners=[runner(status=VERIFIED)]).fetched
    assert not _see(Sightings(), runners=[runner()]).fetched


def test_a_runner_is_not_idle_in_the_pass_that_first_sees_it_up() -> None:
    """It was loaded without anybody asking: nothing but its age says that it is not idle."""
    seen = _see(Sightings(), runners=[runner()], pods=[pod()], nodes=[node()])
    assert (seen.stage, seen.up_since) == (Stage.UP, NOW)
