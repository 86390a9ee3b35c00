"""How a pod ended, in one word and one sentence."""

import json
from typing import Any

import pytest

from berth.controller.outcomes import failed_fetch, judge_pod, judge_waiting
from berth.controller.views import pod_view
from berth.reasons import Reason
from controller.objects import pod


def _ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {"containerStatuses": [{"state": state}]}


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param(
            {"reason": "Evicted", "message": "low on memory"}, Reason.EVICTED, id="turned out"
        ),
        pytest.param(
            {"reason": "UnexpectedAdmissionError"}, Reason.ADMISSION_ERROR, id="not let in"
        ),
        pytest.param(
            {"reason": "OutOfmemory"}, Reason.ADMISSION_ERROR, id="no room at the kubelet"
        ),
        pytest.param({"reason": "NodeLost"}, Reason.NODE_LOST, id="its node went"),
        pytest.param(_ended(137, "OOMKilled"), Reason.OOM_KILLED, id="the kernel killed it"),
        pytest.param(_ended(10), Reason.NO_MEMORY, id="no memory at the last look"),
        pytest.param(_ended(11), Reason.WRONG_DEVICE, id="another device"),
        pytest.param(_ended(12), Reason.MISSING_FILE, id="a file is missing"),
        pytest.param(_ended(13), Reason.BAD_FLAGS, id="flags"),
        pytest.param(_ended(15), Reason.OOM_KILLED, id="the engine ran out of memory"),
        pytest.param(_ended(16), Reason.HUNG, id="no progress"),
        pytest.param(_ended(1), Reason.CRASHED, id="any other exit"),
        pytest.param(_ended(0), Reason.CRASHED, id="it ended though nobody asked"),
        pytest.param({}, Reason.CRASHED, id="nobody knows"),
    ],
)
def test_ends(status: dict[str, Any], want: Reason) -> None:
    outcome = judge_pod(pod_view(pod(phase="Failed", status=status)))
    assert outcome is not None
    assert outcome.reason is want
    assert outcome.message


def test_the_runner_programs_own_words_are_told_with_the_engines_last_line() -> None:
    report = json.dumps(
        {"reason": "BadFlags", "message": "it said no.", "lines": ["a", "bad flag"]}
    )
    outcome = judge_pod(pod_view(pod(phase="Failed", status=_ended(13, message=report))))
    assert outcome is not None
    assert outcome.message == "it said no. Last line: bad flag"
    assert outcome.exit_code == 13


def test_a_running_pod_has_not_ended() -> None:
    assert judge_pod(pod_view(pod())) is None


@pytest.mark.parametrize(
    ("word", "want"),
    [
        ("ImagePullBackOff", Reason.IMAGE_PULL),
        ("ErrImagePull", Reason.IMAGE_PULL),
        ("CreateContainerConfigError", Reason.SECRET_NOT_FOUND),
        ("ContainerCreating", None),
    ],
)
def test_what_holds_a_start_up(word: str, want: Reason | None) -> None:
    state = {"waiting": {"reason": word, "message": "why"}}
    view = pod_view(pod(phase="Pending", status={"containerStatuses": [{"state": state}]}))
    outcome = judge_waiting(view)
    assert (outcome.reason if outcome else None) is want


def test_a_fetch_fails_with_the_agents_word() -> None:
    assert failed_fetch("HashMismatch", "no").reason is Reason.HASH_MISMATCH
    assert failed_fetch("NobodyKnows", None).reason is Reason.SOURCE_UNREACHABLE
