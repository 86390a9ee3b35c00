"""What should a Runner's status say? Everything but the agent's subtree."""

from dataclasses import dataclass

from berth.api.meta import Condition, moment_of, timestamp
from berth.api.runner import LastExit, Runner, RunnerStatus
from berth.controller.conditions import ConditionSheet
from berth.controller.observe_runners import Entry
from berth.controller.outcomes import judge_waiting
from berth.planner.state import Stage
from berth.reasons import ConditionType, Reason


@dataclass(frozen=True)
class RunnerReport:
    """A Runner's status as it should be."""

    runner: Runner
    status: RunnerStatus


def runner_report(entry: Entry, runner: Runner, now: float) -> RunnerReport:
    """What there is to say of an entry whose Runner is there."""
    pod = entry.pod
    before = runner.status
    started = before.started or (timestamp(now) if pod is not None else None)
    came_up = entry.stage is Stage.UP and before.up_since is None
    load_s = before.load_seconds
    if came_up:
        # From the start of its pod: how long a load takes once it has its room and its files.
        load_s = max(0, round(now - _moment(started or "", now)))
    answers = pod is not None and pod.ready and pod.ip and not runner.is_part
    routed = entry.stage is Stage.UP and answers
    status = RunnerStatus(
        conditions=_conditions(entry, runner, now),
        state=state_word(entry),
        pod=pod.name if pod is not None else before.pod,
        address=f"{pod.ip}:{runner.spec.port}" if routed and pod is not None else None,
        started=started,
        up_since=timestamp(now) if came_up else before.up_since,
        load_seconds=load_s,
        last_exit=_last_exit(entry, before, now),
    )
    return RunnerReport(runner, status)


def state_word(entry: Entry) -> str:
    """The Runner's state as people and gateways read it."""
    if entry.runner is not None and entry.runner.spec.drain and entry.stage in _DRAINABLE:
        return "Draining"
    return str(entry.stage)


_DRAINABLE = frozenset({Stage.PREPARING, Stage.RESERVED, Stage.STARTING, Stage.UP})


def _conditions(entry: Entry, runner: Runner, now: float) -> list[Condition]:
    sheet = ConditionSheet(runner.status.conditions, generation=runner.metadata.generation, now=now)
    reason, message = _why(entry)
    sheet.put(
        ConditionType.READY,
        "True" if entry.stage is Stage.UP else "False",
        reason,
        message,
    )
    return sheet.said()


def _why(entry: Entry) -> tuple[str, str]:
    if entry.outcome is not None:
        return entry.outcome.reason, entry.outcome.message
    held_up = judge_waiting(entry.pod) if entry.pod is not None else None
    if held_up is not None and entry.stage is Stage.STARTING:
        return held_up.reason, held_up.message
    agent = entry.runner.status.agent if entry.runner else None
    if entry.stage is Stage.RESERVED and agent and agent.admission:
        admission = agent.admission
        if admission.state == "Refused":
            return admission.reason or Reason.MEMORY, admission.message or ""
    return state_word(entry), ""


def _last_exit(entry: Entry, before: RunnerStatus, now: float) -> LastExit | None:
    outcome = entry.outcome
    if outcome is None:
        return before.last_exit
    if before.last_exit is not None and before.last_exit.reason == outcome.reason:
        return before.last_exit
    return LastExit(
        reason=outcome.reason,
        exit_code=outcome.exit_code,
        message=outcome.message[:4096],
        at=timestamp(now),
    )


def _moment(stamp: str, otherwise: float) -> float:
    try:
        return moment_of(stamp)
    except ValueError:
        return otherwise
