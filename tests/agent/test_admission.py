"""May a load start? Each rule by a table, and what must hold for any node and ledger."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.agent.admission import Admit, Ground, Refusal, decide, is_loading
from berth.planner.arithmetic import rooms
from berth.planner.state import HOST, Claim, Device, Node, Policy, Runner, Stage
from berth.reasons import Reason
from berth.units import Bytes, GiB

NOW = 1000.0


def gpu(index: int = 0, *, used: int = 0, capacity: int = 24, unified: bool = False) -> Device:
    return Device(
        uuid=f"GPU-{index}",
        index=index,
        capacity=Bytes(0 if unified else capacity * GiB),
        used=None if unified else Bytes(used * GiB),
        unified=unified,
    )


def node(
    *devices: Device, total: int = 64, available: int = 60, policy: Policy | None = None
) -> Node:
    return Node(
        name="gpu-1",
        capacity=Bytes(total * GiB),
        available=Bytes(available * GiB),
        devices=devices,
        policy=policy or Policy(),
    )


def runner(
    name: str = "new",
    *,
    host: int = 1,
    stage: Stage = Stage.RESERVED,
    created: float = 0.0,
    measured: dict[str, int] | None = None,
    **devices: int,
) -> Runner:
    claim = Claim(
        host=Bytes(host * GiB),
        devices=tuple(
            (uuid.replace("_", "-"), Bytes(size * GiB)) for uuid, size in devices.items()
        ),
    )
    seen = tuple((place, Bytes(size * GiB)) for place, size in (measured or {}).items())
    return Runner(
        uid=name,
        name=name,
        model="team/llama",
        node="gpu-1",
        claim=claim,
        stage=stage,
        created=created,
        epoch=3,
        measured=seen,
        pod_exists=stage in (Stage.STARTING, Stage.UP, Stage.STOPPING),
        up_since=0.0 if stage is Stage.UP else None,
    )


def ground(*others: Runner, on: Node | None = None, asks: Runner | None = None, **fields) -> Ground:
    entries = (*others, asks) if asks else others
    return Ground(node=on or node(gpu()), runners=entries, now=NOW, **fields)


def reason_of(decision: Admit | Refusal) -> Reason | None:
    return decision.reason if isinstance(decision, Refusal) else None


ASKS = runner(GPU_0=10)
TABLE = [
    pytest.param(
        replace(ASKS, runs_code=frozenset({"PreExec"})),
        ground(),
        Reason.UNTRUSTED_CODE,
        id="code of a profile's own is refused where no policy trusts it, whoever placed it",
    ),
    pytest.param(
        replace(ASKS, runs_code=frozenset({"PreExec"})),
        ground(on=node(gpu(), policy=Policy(trust=frozenset({"PreExec"})))),
        None,
        id="and let in where one does",
    ),
    pytest.param(ASKS, ground(), None, id="an empty device holds it"),
    pytest.param(
        ASKS,
        ground(on=node(gpu(used=13))),
        Reason.MEMORY,
        id="what others use counts although no entry says so",
    ),
    pytest.param(
        ASKS,
        ground(runner("up", GPU_0=12, stage=Stage.UP, measured={"GPU-0": 2}), on=node(gpu(used=2))),
        None,
        id="a runner of ours is charged its claim once, not claim and use",
    ),
    pytest.param(
        ASKS,
        ground(runner("up", GPU_0=14, stage=Stage.UP, measured={"GPU-0": 2}), on=node(gpu(used=2))),
        Reason.MEMORY,
        id="a runner that holds little may still grow to its claim",
    ),
    pytest.param(
        ASKS,
        ground(
            runner("up", GPU_0=2, stage=Stage.UP, measured={"GPU-0": 14}), on=node(gpu(used=14))
        ),
        Reason.MEMORY,
        id="a runner that holds more than its claim is charged what it holds",
    ),
    pytest.param(
        runner(host=60),
        ground(),
        Reason.HOST_MEMORY,
        id="the host keeps its reserve",
    ),
    pytest.param(
        ASKS,
        ground(epoch=4),
        Reason.EPOCH,
        id="a deposed controller's runner is refused",
    ),
    pytest.param(ASKS, ground(epoch=3), None, id="the present controller's is not"),
    pytest.param(
        runner(GPU_7=1),
        ground(),
        Reason.NO_DEVICE,
        id="a device that is not here is refused",
    ),
    pytest.param(
        ASKS,
        ground(on=node(gpu(), policy=Policy(name="gold", devices=frozenset({"1"})))),
        Reason.NO_DEVICE,
        id="a device that the policy keeps from runners is refused",
    ),
    pytest.param(
        ASKS,
        ground(runner("loading", GPU_0=1, stage=Stage.STARTING)),
        Reason.LOAD_IN_PROGRESS,
        id="one load at a time on a device",
    ),
    pytest.param(
        ASKS,
        ground(runner("loading", GPU_1=1, stage=Stage.STARTING), on=node(gpu(0), gpu(1))),
        None,
        id="a load on another device is not in the way",
    ),
    pytest.param(
        ASKS,
        ground(replace(runner("let in", GPU_0=1), admitted_until=NOW + 1)),
        Reason.LOAD_IN_PROGRESS,
        id="an admission is a load before its pod exists",
    ),
    pytest.param(
        ASKS,
        ground(replace(runner("late", GPU_0=1, created=1), admitted_until=NOW - 1)),
        None,
        id="an admission that ran out holds nobody up",
    ),
    pytest.param(
        ASKS,
        ground(runner("dead", GPU_0=1, stage=Stage.FAILED)),
        None,
        id="a load that failed holds nobody up",
    ),
    pytest.param(
        runner(host=1),
        ground(runner("loading", host=1, stage=Stage.STARTING)),
        Reason.LOAD_IN_PROGRESS,
        id="one load at a time on the host",
    ),
    pytest.param(
        ASKS,
        ground(runner("loading", host=1, stage=Stage.STARTING)),
        None,
        id="a load on the CPU is not in the way of one on a device",
    ),
    pytest.param(
        runner(GPU_0=10),
        ground(
            runner("loading", host=1, stage=Stage.STARTING),
            on=node(gpu(unified=True), total=128, available=120),
        ),
        Reason.LOAD_IN_PROGRESS,
        id="on a unified board every load is on the host",
    ),
    pytest.param(
        runner(GPU_0=90),
        ground(on=node(gpu(unified=True), total=128, available=110)),
        Reason.HOST_MEMORY,
        id="a unified device is part of the host, with floor and margin",
    ),
    pytest.param(
        runner(GPU_0=80),
        ground(on=node(gpu(unified=True), total=128, available=110)),
        None,
        id="and holds what is above floor and margin",
    ),
    pytest.param(
        ASKS,
        ground(away=(("GPU-0", "old"),)),
        Reason.SETTLING,
        id="what has gone from the device must be back",
    ),
    pytest.param(
        ASKS, ground(away=(("GPU-1", "old"),), on=node(gpu(0), gpu(1))), None, id="from another: no"
    ),
    pytest.param(
        runner(GPU_0=10),
        ground(
            on=node(gpu(unified=True), total=128, available=110),
            strangers=("vllm (pid 7)",),
        ),
        Reason.FOREIGN_ENGINE,
        id="an engine that nobody claimed memory for blocks a unified board",
    ),
    pytest.param(
        ASKS, ground(strangers=("vllm (pid 7)",)), None, id="and no other board: its use is seen"
    ),
    pytest.param(
        ASKS,
        ground(runner("elder", GPU_0=20, created=-1.0)),
        Reason.MEMORY,
        id="of two reservations that cannot both be met the elder stands",
    ),
    pytest.param(
        ASKS,
        ground(runner("younger", GPU_0=20, created=1.0)),
        None,
        id="and the younger is not counted",
    ),
    pytest.param(
        ASKS,
        ground(
            runner("going", GPU_0=20, stage=Stage.STOPPING, measured={"GPU-0": 20}),
            on=node(gpu(used=20)),
        ),
        Reason.MEMORY,
        id="a runner that is being stopped holds its bytes until it is gone",
    ),
    pytest.param(
        ASKS,
        ground(runner("fetching", GPU_0=20, stage=Stage.PREPARING, created=-1)),
        None,
        id="a runner that prepares claims no memory",
    ),
]


@pytest.mark.parametrize(("asks", "given_ground", "want"), TABLE)
def test_decisions(asks: Runner, given_ground: Ground, want: Reason | None):
    whole = replace(given_ground, runners=(*given_ground.runners, asks))
    assert reason_of(decide(asks, whole)) is want


def test_a_refusal_prints_every_term():
    up = runner("up", GPU_0=8, stage=Stage.UP, measured={"GPU-0": 6})
    asks = runner(GPU_0=12)
    assert decide(asks, ground(up, on=node(gpu(used=9)), asks=asks)) == Refusal(
        reason=Reason.MEMORY,
        message=(
            "new needs 12 GiB of gpu-1 cuda:0; free: 24 GiB - 1.5 GiB kept free "
            "- 3 GiB used by others - 8 GiB held by runners = 11.5 GiB"
        ),
        need=Bytes(12 * GiB),
        have=Bytes(23 * GiB // 2),
    )


def test_an_admission_tells_its_tightest_place():
    asks = runner(host=40, GPU_0=10)
    decision = decide(asks, ground(on=node(gpu(0), available=60), asks=asks))
    assert decision == Admit(need=Bytes(10 * GiB), have=Bytes(45 * GiB // 2))


# -- for any node and ledger -------------------------------------------------------------------

sizes = st.integers(0, 30)
stages = st.sampled_from([Stage.RESERVED, Stage.STARTING, Stage.UP, Stage.STOPPING, Stage.FAILED])


@st.composite
def grounds(draw) -> tuple[Runner, Ground]:
    devices = tuple(gpu(i, used=draw(st.integers(0, 24))) for i in range(draw(st.integers(0, 2))))
    where = node(*devices, available=draw(st.integers(0, 64)))
    others = tuple(
        replace(
            _any_runner(draw, f"r{i}", where),
            created=float(draw(st.integers(0, 5))),
            admitted_until=draw(st.sampled_from([None, NOW - 1, NOW + 1])),
        )
        for i in range(draw(st.integers(0, 4)))
    )
    asks = replace(
        _any_runner(draw, "asks", where), stage=Stage.RESERVED, pod_exists=False, measured=()
    )
    return asks, Ground(where, (*others, asks), NOW, epoch=draw(st.integers(2, 4)))


def _any_runner(draw, name: str, where: Node) -> Runner:
    chosen = (
        draw(st.sets(st.sampled_from([d.uuid for d in where.devices]))) if where.devices else ()
    )
    places = [HOST, *sorted(chosen)]
    measured = {place: draw(sizes) for place in places if draw(st.booleans())}
    claims = {uuid.replace("-", "_"): draw(sizes) for uuid in sorted(chosen)}
    return runner(name, host=draw(sizes), stage=draw(stages), measured=measured, **claims)


@given(grounds())
def test_nothing_is_admitted_that_does_not_fit_beside_everybody_who_came_before(case):
    asks, on = case
    if isinstance(decide(asks, on), Refusal):
        return
    let_in = [r for r in on.runners if r.uid != asks.uid]
    counted = [r for r in let_in if r.stage is not Stage.RESERVED or is_loading(r, NOW)]
    free = rooms(on.node, counted)
    assert asks.claim.host <= max(0, free[HOST].free)
    assert all(size <= max(0, free[uuid].free) for uuid, size in asks.claim.devices)


@given(grounds())
def test_every_refusal_for_memory_has_numbers_that_say_no(case):
    asks, on = case
    decision = decide(asks, on)
    if reason_of(decision) in (Reason.MEMORY, Reason.HOST_MEMORY):
        assert decision.need > decision.have >= 0
        assert decision.message


@given(grounds())
def test_one_load_at_a_time_on_a_place(case):
    asks, on = case
    if isinstance(decide(asks, on), Admit):
        mine = {uuid for uuid, _ in asks.claim.devices} or {HOST}
        for other in on.runners:
            if other.uid != asks.uid and is_loading(other, NOW):
                assert mine.isdisjoint({uuid for uuid, _ in other.claim.devices} or {HOST})


@given(grounds())
def test_of_any_number_that_ask_at_once_the_sum_of_those_let_in_fits(case):
    """As the shell does it: one decision after the other, each counted before the next."""
    _, on = case
    entries = {r.uid: r for r in on.runners}
    for uid in sorted(entries, key=lambda u: (entries[u].created, u)):
        one = entries[uid]
        if one.stage is not Stage.RESERVED or is_loading(one, NOW):
            continue
        if one.measured:
            continue  # the ledger never has it: what has no pod holds nothing
        now = replace(on, runners=tuple(entries.values()))
        if isinstance(decide(one, now), Admit):
            entries[uid] = replace(one, admitted_until=NOW + 60)
            rest = [
                r for r in entries.values() if r.stage is not Stage.RESERVED or is_loading(r, NOW)
            ]
            for place, room in rooms(on.node, rest).items():
                if one.claim.on(place):
                    assert room.free >= 0
