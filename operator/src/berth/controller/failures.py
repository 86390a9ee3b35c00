"""Which ends of runners are failed loads, though the pod itself did not say so?"""

from dataclasses import dataclass

from berth.controller.observe_runners import Entry
from berth.controller.outcomes import Outcome
from berth.planner.actions import Stop
from berth.planner.state import Stage
from berth.reasons import Reason


@dataclass(frozen=True)
class Failure:
    """One load that failed, to be counted. ``runner`` tells it from every other."""

    model: str
    runner: str
    node: str
    outcome: Outcome


def failure_of(entry: Entry, action: Stop) -> Failure | None:
    """A stop that says something about the load: too slow, killed by hand, never admitted.

    What the pod itself ended with was counted when it was seen.
    """
    if entry.outcome is not None:
        return None
    said = ""
    agent = entry.runner.status.agent if entry.runner else None
    if entry.stage is Stage.RESERVED and agent and agent.admission:
        said = agent.admission.message or ""
    match action.reason:
        case Reason.LOAD_TIMEOUT:
            outcome = Outcome(Reason.LOAD_TIMEOUT, "it was not up within its loadTimeout")
        case Reason.KILLED:
            outcome = Outcome(Reason.KILLED, "it was killed by hand")
        case Reason.MEMORY | Reason.HOST_MEMORY | Reason.NO_MEMORY:
            outcome = Outcome(action.reason, said or "the node's agent did not admit it")
        case Reason.NO_AGENT:
            outcome = Outcome(Reason.ADMISSION_ERROR, "the node's agent did not answer")
        case _:
            return None
    return Failure(entry.model_key, entry.uid, entry.node, outcome)
