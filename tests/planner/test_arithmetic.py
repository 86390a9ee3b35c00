"""How many bytes are free? The arithmetic of a place, and that it never says more than the truth."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.planner.arithmetic import Entry, Room, free_on, gpu_reserve, host_reserve, rooms
from berth.planner.state import HOST, Claim, Policy, Stage
from berth.units import Bytes, GiB, MiB
from builders import device, gib, node, runner

SIZES = st.integers(0, 40)


@dataclass(frozen=True)
class Ours:
    """One of our runners as it really is: claimed, actually held, and whether that can be measured."""

    claim: int
    actual: int
    measured: bool
    up: bool
    has_pod: bool


ours = st.builds(
    Ours, claim=SIZES, actual=SIZES, measured=st.booleans(), up=st.booleans(), has_pod=st.booleans()
)


def room_of(
    runners: list[Ours], strangers: int, claims: int, claims_taken: int, *, seen: bool
) -> Room:
    """The arithmetic on what can be observed. ``seen``: the claims' programs can be recognised."""
    used = strangers + claims_taken + sum(r.actual for r in runners if r.has_pod)
    return free_on(
        capacity=Bytes(100),
        reserve=Bytes(6),
        used_live=Bytes(used),
        entries=[
            Entry(
                Bytes(r.claim),
                Bytes(r.actual) if r.measured and r.has_pod else None,
                up=r.up,
                has_pod=r.has_pod,
            )
            for r in runners
        ],
        claims=Bytes(claims),
        claims_used=Bytes(claims_taken if seen else 0),
    )


def truth_of(runners: list[Ours], strangers: int, claims: int, claims_taken: int) -> int:
    held = sum(max(r.claim, r.actual if r.has_pod else 0) for r in runners)
    return 100 - 6 - max(claims, claims_taken) - strangers - held


@settings(max_examples=1000)
@given(st.lists(ours, max_size=6), SIZES, SIZES, st.floats(0, 1), st.booleans())
def test_free_is_never_larger_than_the_truth(
    runners: list[Ours], strangers: int, claims: int, share: float, seen: bool
) -> None:
    """For any split of claims into used and unused, and any part of our own use that is measured.

    Where a runner that is up cannot be measured the place is marked unsure, and the error is at
    most what that runner leaves unused of its claim, or takes beyond it.
    """
    claims_taken = int(claims * share)
    room = room_of(runners, strangers, claims, claims_taken, seen=seen)
    blind = [r for r in runners if not r.measured and r.has_pod]
    slack = sum(abs(r.claim - r.actual) for r in blind if r.up)
    slack += sum(max(0, r.actual - r.claim) for r in blind if not r.up)
    assert room.free <= truth_of(runners, strangers, claims, claims_taken) + slack
    assert room.unsure == bool(blind)


@settings(max_examples=500)
@given(st.lists(ours, max_size=6), SIZES, SIZES, st.floats(0, 1))
def test_where_everything_is_measured_free_is_the_truth(
    runners: list[Ours], strangers: int, claims: int, share: float
) -> None:
    known = [Ours(r.claim, r.actual, True, r.up, r.has_pod) for r in runners]
    claims_taken = int(claims * share)
    room = room_of(known, strangers, claims, claims_taken, seen=True)
    assert room.free == truth_of(known, strangers, claims, claims_taken)


@settings(max_examples=300)
@given(st.lists(ours, min_size=1, max_size=6), SIZES)
def test_a_runner_that_ends_gives_back_what_it_held(runners: list[Ours], strangers: int) -> None:
    known = [Ours(r.claim, r.actual, True, True, True) for r in runners]
    before = room_of(known, strangers, 0, 0, seen=True)
    after = room_of(known[1:], strangers, 0, 0, seen=True)
    assert after.free - before.free == max(known[0].claim, known[0].actual)


@pytest.mark.parametrize(
    ("capacity", "want"),
    [
        pytest.param(6.0, 512 * MiB, id="a small GPU keeps 512 MiB"),
        pytest.param(8.0, 512 * MiB, id="at 8 GiB both are the same"),
        pytest.param(24.0, 1.5 * GiB, id="a large GPU keeps a sixteenth"),
    ],
)
def test_each_gpu_keeps_its_reserve(capacity: float, want: float) -> None:
    assert gpu_reserve(device(0, capacity), Policy()) == want


def test_a_policy_sets_the_reserves() -> None:
    mine = Policy(gpu_reserve=gib(3), host_reserve=gib(5))
    assert gpu_reserve(device(), mine) == gib(3)
    assert host_reserve(node(policy=mine)) == gib(5)


def test_a_unified_board_keeps_floor_and_margin_and_is_one_place() -> None:
    board = node(devices=(device(0, 0, used=None, unified=True),), host=128)
    mine = runner("a", 40, 2)
    assert host_reserve(board) == gib(21)
    assert set(rooms(board, [mine])) == {HOST}
    assert rooms(board, [mine])[HOST].held == gib(42)


def test_warm_page_cache_is_not_free() -> None:
    plain, warm = node(host=65), node(host=65, warm=gib(20))
    assert rooms(plain, [])[HOST].free - rooms(warm, [])[HOST].free == gib(20)


def test_a_preparing_runner_claims_disk_only() -> None:
    assert rooms(node(), [runner(stage=Stage.PREPARING)])[HOST].held == 0


def test_a_runner_that_ended_holds_its_claim_until_it_is_cleared_away() -> None:
    ended = runner(stage=Stage.FAILED, measured=(("GPU-gpu-1-0", gib(10)),))
    taken = node(devices=(device(used=0.0),))
    assert rooms(taken, [ended])["GPU-gpu-1-0"].free == gib(14)


def test_measured_beyond_the_claim_counts_as_measured() -> None:
    grown = runner(measured=(("GPU-gpu-1-0", gib(12)), (HOST, gib(1))))
    taken = node(devices=(device(used=12.0),))
    assert rooms(taken, [grown])["GPU-gpu-1-0"].free == gib(12)


def test_what_is_set_aside_is_not_there_even_when_the_place_is_empty() -> None:
    seen = rooms(node(gpus=0, policy=Policy(claims=Bytes(9 * GiB))), [])[HOST]
    assert (seen.emptied, seen.free) == (55 * GiB, 55 * GiB)


def test_a_runner_on_two_devices_counts_on_each() -> None:
    claim = Claim(gib(1), (("GPU-gpu-1-0", gib(10)), ("GPU-gpu-1-1", gib(4))))
    seen = rooms(node(gpus=3), [runner(claim=claim)])
    assert [seen[f"GPU-gpu-1-{at}"].free for at in range(3)] == [gib(14), gib(20), gib(24)]
