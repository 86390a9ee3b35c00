"""Whose weights stay in host memory, and what gives way to what?"""

from dataclasses import replace

import pytest

from berth.planner.actions import PlaceNo, Plan, Refuse
from berth.planner.arithmetic import host_room
from berth.planner.candidates import Candidate, claim_of
from berth.planner.copies import CopyPlan, DropCopy, MakeCopy, carried, plan_copies
from berth.planner.state import Claim, Copy, Device, Model, Need, Node, Policy, Runner, Stage, State
from berth.reasons import Reason
from berth.units import Bytes, GiB

GPU = Device("g", 0, Bytes(24 * GiB))
NOTHING = Plan()
LOADS = {("n", "a"): 1.0, ("n", "b"): 2.0, ("n", "c"): 3.0}
"""``c`` was loaded last."""


def over(size):
    """What a copy's pod may hold: the file and a little."""
    return Bytes(size + 1)


def node(budget=0, copies=(), **fields):
    policy = Policy(name="p", host_weights=Bytes(budget), **fields.pop("policy", {}))
    defaults = {
        "name": "n",
        "capacity": Bytes(64 * GiB),
        "available": Bytes(60 * GiB),
        "devices": (GPU,),
        "files": frozenset("abcd"),
        "policy": policy,
        "copies": tuple(copies),
    }
    return Node(**{**defaults, **fields})


def model(name, size=10, **fields):
    return Model(f"ns/{name}", name, files=((name, Bytes(size * GiB)),), **fields)


def copy(name, size=10, **fields):
    return Copy(name, Bytes(size * GiB), over(size * GiB), **{"ready": True, **fields})


def runner(name, **fields):
    defaults = {"claim": Claim(Bytes(GiB), (("g", Bytes(GiB)),)), "stage": Stage.UP}
    return Runner(f"r-{name}", f"r-{name}", f"ns/{name}", "n", **{**defaults, **fields})


MAPPED = (Need(Bytes(12 * GiB), file_pages=Bytes(10 * GiB)),)
"""Needs of a model that is mapped by a runner on the CPU."""
ON_CPU = {"claim": Claim(Bytes(2 * GiB))}


def decide(one, models, runners=(), plan=NOTHING, loads=LOADS):
    state = State(now=100.0, epoch=1, nodes=(one,), models=tuple(models), runners=tuple(runners))
    return plan_copies(state, plan, loads, over)


def made(*names, size=10):
    return tuple(MakeCopy("n", name, Bytes(size * GiB)) for name in names)


def dropped(*names):
    return tuple(DropCopy("n", name) for name in names)


ABC = [model("a"), model("b"), model("c")]


@pytest.mark.parametrize(
    ("one", "models", "runners", "want"),
    [
        pytest.param(node(0), ABC, [], CopyPlan(), id="without a budget nothing is copied"),
        pytest.param(
            node(30 * GiB), ABC, [], CopyPlan(make=made("c")), id="the one loaded last comes first"
        ),
        pytest.param(
            node(30 * GiB, [copy("c")]),
            ABC,
            [],
            CopyPlan(make=made("b")),
            id="then the one before it",
        ),
        pytest.param(
            node(30 * GiB, [copy("c", ready=False)]),
            ABC,
            [],
            CopyPlan(),
            id="one at a time: each reads the disk",
        ),
        pytest.param(
            node(20 * GiB, [copy("a"), copy("b"), copy("c")]),
            ABC,
            [],
            CopyPlan(drop=dropped("a")),
            id="beyond the budget the one loaded longest ago goes",
        ),
        pytest.param(
            node(30 * GiB, files=frozenset("ab"), copies=[]),
            ABC,
            [],
            CopyPlan(make=made("b")),
            id="what is not on the node is not copied",
        ),
        pytest.param(
            node(30 * GiB),
            ABC,
            [runner("a", stage=Stage.STARTING)],
            CopyPlan(),
            id="nothing is copied while something loads",
        ),
        pytest.param(
            node(10 * GiB),
            [model("a", keeps_host=True), *ABC[1:]],
            [],
            CopyPlan(make=made("a")),
            id="what must stay comes before what was loaded last",
        ),
        pytest.param(
            node(10 * GiB, [copy("c")]),
            [model("a", keeps_host=True), model("b", keeps_host=True), model("c")],
            [],
            CopyPlan(
                make=made("a"),
                drop=dropped("c"),
                warnings={
                    "p": (
                        Reason.COPIES_OVERCOMMITTED,
                        "n: copies that must stay take 20 GiB, the budget is 10 GiB; no other model's "
                        "copy stays",
                    )
                },
            ),
            id="beyond the budget what must stay is copied all the same, and nobody else's stays",
        ),
        pytest.param(
            node(100 * GiB, available=Bytes(8 * GiB)),
            ABC,
            [],
            CopyPlan(
                warnings={
                    "p": (
                        Reason.BUDGET_CUT,
                        "n: the budget for host copies is cut to 63 GiB, what the host has beside its "
                        "reserve",
                    )
                }
            ),
            id="a budget above the host's memory is cut, never an OOM",
        ),
        pytest.param(
            node(30 * GiB, [copy("c")], held_by="maintenance"),
            ABC,
            [],
            CopyPlan(drop=dropped("c")),
            id="a held node is given back whole",
        ),
        pytest.param(
            node(30 * GiB, [copy("c")]),
            [model("c", needs=MAPPED)],
            [runner("c", **ON_CPU)],
            CopyPlan(),
            id="a copy that a runner's claim rests on stays",
        ),
        pytest.param(
            node(0, [copy("c")]),
            [model("c", needs=MAPPED)],
            [runner("c", **ON_CPU)],
            CopyPlan(),
            id="even when the budget has gone",
        ),
        pytest.param(
            node(30 * GiB),
            [model("c", needs=MAPPED)],
            [runner("c", **ON_CPU)],
            CopyPlan(),
            id="pages that a runner has mapped are charged to it: no copy beside it",
        ),
        pytest.param(
            node(30 * GiB, [copy("c")], policy={"drop_after_load": True}),
            [model("c")],
            [runner("c")],
            CopyPlan(drop=dropped("c")),
            id="Drop: what is up on a GPU gives its copy back",
        ),
        pytest.param(
            node(30 * GiB, [copy("c")]),
            [model("c")],
            [runner("c")],
            CopyPlan(),
            id="Keep: it stays beside the GPU's",
        ),
        pytest.param(
            node(labels={"zone": "x"}),
            [model("a", keeps_host=True, node_selector={"zone": "y"})],
            [],
            CopyPlan(),
            id="what may not run here is not kept here",
        ),
    ],
)
def test_copies(one, models, runners, want):
    assert decide(one, models, runners) == want


def test_a_model_that_finds_no_memory_gets_that_of_copies():
    full = node(30 * GiB, [copy("a"), copy("b"), copy("c")])
    lacks = PlaceNo("n", "", Reason.HOST_MEMORY, need=Bytes(15 * GiB), have=Bytes(0))
    refuse = Refuse("ns/d", Reason.MEMORY, "", places=(lacks,))
    assert decide(full, ABC, plan=Plan(actions=(refuse,))).drop == dropped("a", "b")


def test_a_copy_that_must_stay_gives_way_to_nobody():
    full = node(30 * GiB, [copy("a")])
    lacks = PlaceNo("n", "", Reason.HOST_MEMORY, need=Bytes(GiB), have=Bytes(0))
    refuse = Refuse("ns/d", Reason.MEMORY, "", places=(lacks,))
    pinned = [model("a", keeps_host=True)]
    assert decide(full, pinned, plan=Plan(actions=(refuse,))).drop == ()


def test_a_copy_is_an_entry_of_the_ledger_whether_it_is_there_yet_or_not():
    """Its bytes are taken off once: as its claim before they are in use, as use afterwards."""
    empty = host_room(node(), ())
    coming = node(copies=[copy("a", ready=False)])
    held = replace(node(copies=[copy("a")]), available=Bytes(50 * GiB))
    claim = over(10 * GiB)
    assert host_room(coming, ()).free == empty.free - claim
    assert host_room(held, ()).free == empty.free - claim


def test_who_maps_a_copy_is_not_charged_for_it_again():
    need, one = MAPPED[0], node(copies=[copy("c")])
    whole = model("c", needs=MAPPED)
    assert carried(one, whole, need.file_pages) == 10 * GiB
    assert claim_of(Candidate("n", (), need, 0, Bytes(10 * GiB))) == Claim(Bytes(2 * GiB))
    split = replace(whole, files=(*whole.files, ("z", Bytes(1))))
    for other in (split, replace(whole, files=())):
        assert carried(one, other, need.file_pages) == 0
    assert carried(node(copies=[copy("c", ready=False)]), whole, need.file_pages) == 0
