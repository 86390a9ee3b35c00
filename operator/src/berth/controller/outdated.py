"""Does a refusal that was final still hold? Not once the cluster has changed its shape."""

from collections.abc import Hashable

from berth.api.meta import moment_of
from berth.api.model import LastRefusal, ModelStatus
from berth.controller.sightings import Sightings
from berth.planner.state import State
from berth.reasons import Reason

FINAL = frozenset(
    {
        Reason.NEVER_FITS,
        Reason.ONLY_PINNED,
        Reason.NO_NODE,
        Reason.NO_DEVICE,
        Reason.CPU_NOT_ALLOWED,
        Reason.UNTRUSTED_PATH,
        Reason.UNTRUSTED_CODE,
    }
)
"""Refusals that gateways give at once, without asking: an old one would be given for ever."""


def shape_of(state: State) -> Hashable:
    """What a final refusal rests on: nodes and devices that may be used, policies, pinned models."""
    nodes = tuple(
        (
            node.name,
            node.ready and node.schedulable and node.agent_fresh,
            node.capacity,
            tuple(device.capacity for device in node.devices),
            node.policy,
        )
        for node in state.nodes
    )
    return nodes, tuple(model.key for model in state.models if model.pinned)


def shape_since(state: State, sightings: Sightings) -> float:
    """Since when the cluster has its shape; 0 when it had it already at first sight."""
    shape = shape_of(state)
    if sightings.first("shape", ""):
        sightings.put("shape", "", shape, 0.0)
    return sightings.since("shape", "", shape, state.now)


def without_outdated_refusal(
    status: ModelStatus, *, refused_now: bool, since: float
) -> ModelStatus:
    """The status without a final refusal that is older than the cluster's shape.

    One that was given in this very pass holds, whenever it was first given.
    """
    refusal = status.last_refusal
    if refusal is None or refused_now or refusal.reason not in FINAL or _at(refusal) >= since:
        return status
    return status.model_copy(update={"last_refusal": None})


def _at(refusal: LastRefusal) -> float:
    try:
        return moment_of(refusal.at)
    except ValueError:
        return 0.0
