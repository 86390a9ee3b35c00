"""A final refusal is forgotten when the cluster changes its shape, for gateways give it unasked."""

from dataclasses import replace

import pytest

from berth.api.meta import timestamp
from berth.api.model import LastRefusal, ModelStatus
from berth.controller.outdated import shape_since, without_outdated_refusal
from berth.controller.sightings import Sightings
from berth.planner.state import Node, State
from berth.reasons import Reason
from berth.units import Bytes
from controller.objects import GIB, NOW

SMALL = State(now=NOW, epoch=1, nodes=(Node("a", Bytes(16 * GIB), Bytes(9 * GIB)),))
LARGER = replace(
    SMALL, now=NOW + 50, nodes=(*SMALL.nodes, Node("b", Bytes(64 * GIB), Bytes(60 * GIB)))
)


def _status(reason: Reason, at: float = NOW) -> ModelStatus:
    return ModelStatus(last_refusal=LastRefusal(reason=reason, at=timestamp(at)))


def test_the_first_sight_is_no_change_and_neither_is_free_memory() -> None:
    sightings = Sightings()
    assert shape_since(SMALL, sightings) == 0.0
    fuller = replace(SMALL, nodes=(Node("a", Bytes(16 * GIB), Bytes(1 * GIB)),))
    assert shape_since(fuller, sightings) == 0.0


def test_another_node_is_a_change() -> None:
    sightings = Sightings()
    shape_since(SMALL, sightings)
    assert shape_since(LARGER, sightings) == NOW + 50


@pytest.mark.parametrize(
    ("status", "refused_now", "kept"),
    [
        pytest.param(_status(Reason.NEVER_FITS), False, False, id="older than the change"),
        pytest.param(_status(Reason.NEVER_FITS), True, True, id="given again just now"),
        pytest.param(_status(Reason.NEVER_FITS, NOW + 60), False, True, id="younger than it"),
        pytest.param(_status(Reason.MEMORY), False, True, id="not final: gateways wait anyhow"),
    ],
)
def test_which_refusal_is_kept(status: ModelStatus, refused_now: bool, kept: bool) -> None:
    after = without_outdated_refusal(status, refused_now=refused_now, since=NOW + 50)
    assert (after.last_refusal is not None) is kept
