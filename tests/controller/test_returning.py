"""Between a runner's end and the node's next figures, its memory is on its way back, not a stranger's."""

from dataclasses import replace

from berth.controller.returning import Returning
from berth.planner.state import HOST, Claim, Device, Node, Runner, Stage
from berth.units import Bytes

GIB = 1 << 30
NOW = 1000.0


def _node(available: int, gpu_used: int = 0) -> Node:
    gpu = Device("GPU-1", 0, Bytes(24 * GIB), Bytes(gpu_used * GIB))
    return Node("a", Bytes(64 * GIB), Bytes(available * GIB), devices=(gpu,))


def _runner(host: int = 10, gpu: int = 8, stage: Stage = Stage.UP) -> Runner:
    measured = ((HOST, Bytes(host * GIB)), ("GPU-1", Bytes(gpu * GIB)))
    return Runner("u", "r", "ns/m", "a", Claim(), stage, measured=measured)


def _figures(node: Node) -> tuple[int, int]:
    used = node.devices[0].used
    assert used is not None
    return node.available // GIB, used // GIB


def test_what_a_runner_held_counts_as_free_from_its_end_until_the_figures_show_it() -> None:
    returning, before = Returning(), _node(50, 9)
    returning.note([_runner()], [before], NOW)
    assert returning.corrected([before]) == (before,)
    returning.note([], [before], NOW + 1)
    assert _figures(*returning.corrected([before])) == (60, 1)


def test_what_has_come_back_is_not_counted_twice() -> None:
    returning = Returning()
    returning.note([_runner()], [_node(50, 9)], NOW)
    half = _node(54, 1)
    returning.note([], [half], NOW + 1)
    assert _figures(*returning.corrected([half])) == (60, 1)
    whole = _node(60, 1)
    assert returning.corrected([whole]) == (whole,)


def test_what_does_not_come_back_is_somebody_elses_after_a_while() -> None:
    returning, node = Returning(), _node(50, 9)
    returning.note([_runner()], [node], NOW)
    returning.note([], [node], NOW + 1)
    returning.note([], [node], NOW + 17)
    assert returning.corrected([node]) == (node,)


def test_a_pod_that_is_ending_is_known_to_hold_what_it_held() -> None:
    returning = Returning()
    returning.note([_runner()], [_node(50, 9)], NOW)
    ending = replace(_runner(stage=Stage.STOPPING), measured=())
    returning.note([ending], [_node(50, 9)], NOW + 1)
    assert dict(returning.held("u")) == {HOST: 10 * GIB, "GPU-1": 8 * GIB}
    assert returning.held("other") == ()
