"""What should the statuses of Profiles and Residencies say?"""

from collections.abc import Iterable, Mapping, Sequence

from berth.api.meta import timestamp
from berth.api.profile import Profile, ProfileStatus
from berth.api.residency import (
    PlannedModel,
    Residency,
    ResidencyRefusal,
    ResidencyStatus,
)
from berth.controller.conditions import ConditionSheet
from berth.planner.actions import Plan, Refuse
from berth.planner.state import Runner, Stage, State
from berth.reasons import ConditionType, Reason

_LARGEST = 20
_REFUSALS = 10


def profile_status(profile: Profile, models: int, now: float) -> ProfileStatus:
    """Accepted, and how many Models name it."""
    generation = profile.metadata.generation
    sheet = ConditionSheet(profile.status.conditions, generation=generation, now=now)
    sheet.put(ConditionType.ACCEPTED, "True", Reason.ACCEPTED)
    return ProfileStatus(observed_generation=generation, conditions=sheet.said(), models=models)


def residency_status(
    residency: Residency,
    state: State,
    plan: Plan,
    now: float,
    *,
    warning: tuple[Reason, str] | None = None,
) -> ResidencyStatus:
    """The plan in short: totals, the largest runners, the latest refusals of those who tried here."""
    name, generation = residency.metadata.name, residency.metadata.generation
    nodes = [node for node in state.nodes if node.policy.name == name]
    names = {node.name for node in nodes}
    runners = [runner for runner in state.runners if runner.node in names]
    sheet = ConditionSheet(residency.status.conditions, generation=generation, now=now)
    sheet.put(ConditionType.ACCEPTED, "True", Reason.ACCEPTED)
    if warning is not None:
        sheet.put(ConditionType.HOST_COPIES, "False", *warning)
    elif any(node.policy.host_weights for node in nodes):
        sheet.put(ConditionType.HOST_COPIES, "True", Reason.COPIES_FIT)
    return ResidencyStatus(
        observed_generation=generation,
        conditions=sheet.said(),
        nodes=len(nodes),
        runners=len(runners),
        host_capacity=sum(node.capacity for node in nodes),
        host_claimed=sum(runner.claim.host for runner in runners),
        device_capacity=sum(d.capacity for node in nodes for d in node.devices),
        device_claimed=sum(size for r in runners for _, size in r.claim.devices),
        models=_largest(runners),
        refusals=_refusals(residency, plan, names, now),
    )


def _largest(runners: Sequence[Runner]) -> list[PlannedModel]:
    claims: dict[str, int] = {}
    loaded: set[str] = set()
    for runner in runners:
        total = runner.claim.host + sum(size for _, size in runner.claim.devices)
        claims[runner.model] = claims.get(runner.model, 0) + total
        if runner.stage is Stage.UP:
            loaded.add(runner.model)
    largest = sorted(claims.items(), key=lambda item: (-item[1], item[0]))[:_LARGEST]
    return [PlannedModel(model=m, claim=c, loaded=m in loaded, fits=True) for m, c in largest]


def _refusals(
    residency: Residency, plan: Plan, nodes: set[str], now: float
) -> list[ResidencyRefusal]:
    """The newest ten, each Model once; one that says the same again keeps its time."""
    before = {refusal.model: refusal for refusal in residency.status.refusals}
    for action in plan.actions:
        if not isinstance(action, Refuse) or not any(p.node in nodes for p in action.places):
            continue
        known = before.get(action.model)
        if known is None or known.reason != action.reason:
            before[action.model] = ResidencyRefusal(
                model=action.model,
                reason=action.reason,
                message=action.message[:1024],
                at=timestamp(now),
            )
    return sorted(before.values(), key=lambda r: (r.at, r.model), reverse=True)[:_REFUSALS]


def models_by_profile(profiles: Iterable[str], wanted: Mapping[str, str]) -> dict[str, int]:
    """How many Models name each profile; keys are ``namespace/name``."""
    counts = dict.fromkeys(profiles, 0)
    for profile in wanted.values():
        if profile in counts:
            counts[profile] += 1
    return counts
