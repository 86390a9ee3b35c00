"""What did a plan decide, in short?"""

from berth.planner.actions import Action, Drain, Plan, Prepare, Refuse, Reserve
from berth.reasons import Reason


def places(plan: Plan) -> list[tuple[str, str, tuple[str, ...]]]:
    """What was placed: the kind, the node, and the devices by their last figure."""
    return [
        (type(a).__name__, a.place.node, tuple(uuid.rpartition("-")[2] for uuid in a.place.devices))
        for a in plan.actions
        if isinstance(a, (Prepare, Reserve))
    ]


def victims(plan: Plan) -> list[str]:
    return [a.runner for a in plan.actions if isinstance(a, Drain) and a.reason is Reason.MAKE_ROOM]


def refusals(plan: Plan) -> list[tuple[Reason, bool]]:
    return [(a.reason, a.final) for a in plan.actions if isinstance(a, Refuse)]


def only(plan: Plan, kind: type[Action]) -> Action:
    found = [a for a in plan.actions if isinstance(a, kind)]
    assert len(found) == 1, plan.actions
    return found[0]
