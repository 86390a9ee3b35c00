"""What does the end of a pod mean? Its reason; `planner.restarts` says what may be tried next."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from berth.controller.views import Ended, PodView
from berth.reasons import Reason
from berth.runner.exits import ExitCode


@dataclass(frozen=True)
class Outcome:
    """Why a load or a runner failed. ``exit_code`` is the container's, where it had one."""

    reason: Reason
    message: str
    exit_code: int | None = None


_EXITS: dict[int, Reason] = {
    ExitCode.NO_MEMORY: Reason.NO_MEMORY,
    ExitCode.WRONG_DEVICE: Reason.WRONG_DEVICE,
    ExitCode.MISSING_FILE: Reason.MISSING_FILE,
    ExitCode.BAD_FLAGS: Reason.BAD_FLAGS,
    ExitCode.ENGINE_CRASH: Reason.CRASHED,
    ExitCode.ENGINE_OOM: Reason.OOM_KILLED,
    ExitCode.HANG: Reason.HUNG,
    ExitCode.BAD_CONFIG: Reason.INTERNAL_ERROR,
    ExitCode.ENGINE_MISSING: Reason.UNSUPPORTED,
    ExitCode.LOAD_FAILED: Reason.CRASHED,
    ExitCode.SMOKE_FAILED: Reason.SMOKE_FAILED,
}
_NODE_ENDED_IT = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated"})


def judge_pod(pod: PodView) -> Outcome | None:
    """Why the pod ended; None while it has not.

    Rules, first match wins: the kubelet turned it out, the kubelet did not take it in, its node
    ended it, the kernel killed it for memory, the runner program said why, anything else.
    """
    if not pod.finished:
        return None
    found = next((outcome for rule in _RULES if (outcome := rule(pod))), None)
    return found or Outcome(Reason.CRASHED, _words(pod) or f"pod {pod.name} ended ({pod.phase})")


def _evicted(pod: PodView) -> Outcome | None:
    if pod.reason not in {"Evicted", "Preempting"}:
        return None
    return Outcome(Reason.EVICTED, _words(pod))


def _not_taken_in(pod: PodView) -> Outcome | None:
    known = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "Topology")
    if not pod.reason.startswith(known):
        return None
    return Outcome(Reason.ADMISSION_ERROR, _words(pod))


def _node_ended(pod: PodView) -> Outcome | None:
    if pod.reason not in _NODE_ENDED_IT:
        return None
    return Outcome(Reason.NODE_LOST, _words(pod))


def _killed_for_memory(pod: PodView) -> Outcome | None:
    if pod.ended is None or pod.ended.reason != "OOMKilled":
        return None
    message = f"the kernel killed pod {pod.name} for memory: its need was too small"
    return Outcome(Reason.OOM_KILLED, message, exit_code=pod.ended.exit_code)


def _said_by_runner(pod: PodView) -> Outcome | None:
    if pod.ended is None or pod.ended.exit_code not in _EXITS:
        return None
    code = ExitCode(pod.ended.exit_code)
    message = _report(pod.ended) or f"the runner ended with code {int(code)} ({code.reason})"
    return Outcome(_EXITS[code], message, exit_code=int(code))


def _other_exit(pod: PodView) -> Outcome | None:
    if pod.ended is None:
        return None
    message = f"exit code {pod.ended.exit_code}. {_report(pod.ended)}".strip()
    return Outcome(Reason.CRASHED, message, exit_code=pod.ended.exit_code)


_RULES: tuple[Callable[[PodView], Outcome | None], ...] = (
    _evicted,
    _not_taken_in,
    _node_ended,
    _killed_for_memory,
    _said_by_runner,
    _other_exit,
)


def judge_waiting(pod: PodView) -> Outcome | None:
    """Why the pod's container does not start; None when nothing holds it up. It is not a failure
    at once: the kubelet goes on trying."""
    words = pod.waiting_message or pod.waiting_reason
    match pod.waiting_reason:
        case "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull":
            return Outcome(Reason.IMAGE_PULL, words)
        case "CreateContainerConfigError":
            return Outcome(Reason.SECRET_NOT_FOUND, words)
        case "CreateContainerError" | "RunContainerError":
            return Outcome(Reason.CRASHED, words)
    return None


def unscheduled(pod: PodView, *, after_s: float) -> Outcome:
    """The scheduler found no way to put the pod where the planner wanted it."""
    words = pod.unscheduled_message or "the scheduler has not bound it"
    message = f"pod {pod.name} was not scheduled in {after_s:.0f} s: {words}"
    return Outcome(Reason.UNSCHEDULABLE, message)


def failed_fetch(reason: str | None, message: str | None) -> Outcome:
    """What the agent said of a fetch that failed."""
    known = {str(member): member for member in Reason}
    word = known.get(reason or "", Reason.SOURCE_UNREACHABLE)
    return Outcome(word, message or "fetching its files failed")


def _words(pod: PodView) -> str:
    said = f"{pod.reason}: {pod.message}" if pod.message else pod.reason
    return said.strip(": ")


def _report(ended: Ended) -> str:
    """The sentence of the runner program's report and the engine's last words."""
    try:
        report = json.loads(ended.message)
    except ValueError:
        return ended.message[:600]
    if not isinstance(report, dict):
        return ended.message[:600]
    lines = report.get("lines") or []
    last = f" Last line: {lines[-1]}" if lines else ""
    return f"{report.get('message') or report.get('reason') or ''}{last}"[:600].strip()
