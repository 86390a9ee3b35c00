"""Who makes room for a wanted model, and who never does?"""

import pytest

from berth.planner.plan import make_plan
from berth.planner.state import Stage, State
from builders import (
    NOW,
    cluster,
    draining,
    model,
    node,
    policy,
    runner,
    waiting,
)
from planner.told import victims

VICTIMS = [
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20), runner("b", 20)),
        ["r-b"],
        id="an idle runner makes room",
    ),
    pytest.param(
        cluster(
            node(gpus=2), waiting("a", 20),
            model("b", 20, used=NOW - 100), runner("b", 20),
            model("c", 20, used=NOW - 200), runner("c", 20, at=1),
        ),
        ["r-c"],
        id="the least recently used goes first",
    ),
    pytest.param(
        cluster(
            node(gpus=2), waiting("a", 20),
            model("b", 20, used=NOW - 100), runner("b", 20),
            model("c", 20, used=NOW - 200, priority=5), runner("c", 20, at=1),
        ),
        ["r-b"],
        id="the lower priority goes first",
    ),
    pytest.param(
        cluster(
            node(gpus=2), waiting("a", 20),
            model("b", 20, used=NOW - 100), runner("b", 20),
            model("c", 20, used=NOW - 900, min_replicas=1), runner("c", 20, at=1),
        ),
        ["r-b"],
        id="kept-loaded runners go last",
    ),
    pytest.param(
        cluster(
            node(), waiting("a", 16),
            model("b", 4, used=NOW - 300), runner("b", 4),
            model("c", 4, used=NOW - 200), runner("c", 4),
            model("d", 12, used=NOW - 100), runner("d", 12),
        ),
        ["r-d"],
        id="a member of the set that is not needed is not stopped",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20), runner("b", 20, busy=1)),
        [],
        id="a busy runner is never a victim",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), waiting("b", 20), runner("b", 20)),
        [],
        id="a runner whose model has requests waiting is never a victim",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20), runner("b", 20, stage=Stage.STARTING)),
        [],
        id="a loading runner is never a victim",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20, pinned=True), runner("b", 20)),
        [],
        id="a pinned runner is never a victim",
    ),
    pytest.param(
        cluster(
            node(), waiting("a", 23),
            model("b", 10), runner("b", 10), model("c", 10), runner("c", 10, busy=1),
        ),
        [],
        id="where no set is enough nobody is touched",
    ),
    pytest.param(
        cluster(node(), waiting("a", 30), model("b", 20), runner("b", 20)),
        [],
        id="a model that can never fit evicts nobody",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20), runner("b", 20), healthy_since=NOW - 30),
        [],
        id="nobody is evicted until the watches have been healthy for a while",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20), runner("b", 20, up_since=NOW - 3)),
        [],
        id="who has just come up keeps its place until those who waited have reached it",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20, used=NOW - 1), runner("b", 20)),
        [],
        id="a report of no work is not believed right after a use",
    ),
    pytest.param(
        cluster(
            node(), waiting("a", 20, since=NOW - 61),
            model("b", 20, waiting=3, waiting_since=NOW - 5), runner("b", 20, busy=1),
        ),
        ["r-b"],
        id="a busy runner gives way to who waited for the fairness window",
    ),
    pytest.param(
        cluster(
            node(), waiting("a", 20, since=NOW - 61),
            model("b", 20), runner("b", 20, busy=1, up_since=NOW - 30),
        ),
        [],
        id="nobody loses its place before it had it for the fairness window",
    ),
    pytest.param(
        cluster(
            node(), waiting("a", 20),
            model("b", 8), draining(runner("b", 8), newcomer="ns/z"),
            waiting("z", 4), runner("z", 4, stage=Stage.RESERVED),
            model("c", 12), runner("c", 12),
        ),
        ["r-c"],
        id="the bytes of a draining runner count once",
    ),
    pytest.param(
        cluster(node(), model("a", 20, min_replicas=1), model("b", 20, min_replicas=1), runner("b", 20)),
        [],
        id="two kept-loaded models that exclude each other do not swap",
    ),
    pytest.param(
        cluster(node(), model("a", 20, min_replicas=1), model("b", 20, used=NOW - 10), runner("b", 20)),
        [],
        id="where nobody waits what was used a moment ago stays",
    ),
    pytest.param(
        cluster(node(policy=policy(autoload=("a",))), model("a", 20), model("b", 20), runner("b", 20)),
        [],
        id="autoload takes from nobody",
    ),
    pytest.param(
        cluster(
            node(policy=policy(max_runners=2)), waiting("a", 2),
            model("b", 2, used=NOW - 100), runner("b", 2), model("c", 2, used=NOW - 50), runner("c", 2),
        ),
        ["r-b"],
        id="at the cap the least recently used makes room",
    ),
    pytest.param(
        cluster(
            node(policy=policy(max_runners=4)), waiting("a", 20),
            model("b", 20, used=NOW - 100), runner("b", 20),
            model("c", 1, used=NOW - 50), runner("c", 1), model("d", 1, used=NOW - 50), runner("d", 1),
        ),
        ["r-b"],
        id="below the cap nobody goes for its sake",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20), model("b", 20), runner("b", 20), healthy_since=NOW - 90),
        ["r-b"],
        id="after 90 s of healthy watches what is idle may be evicted",
    ),
    pytest.param(
        cluster(
            node(host=193, gpus=0), waiting("a", None, host=100),
            model("b", None, 50, used=NOW - 30), runner("b", None, 50),
            model("c", None, 50, used=NOW - 60), runner("c", None, 50),
        ),
        ["r-c"],
        id="eviction is by bytes, least recently used, until it fits (C18)",
    ),
    pytest.param(
        cluster(
            node(gpus=0, host=61),
            *(m for i in range(3) for m in (model(f"p{i}", None, 10, pinned=True, used=NOW - 900), runner(f"p{i}", None, 10))),
            model("u0", None, 10, used=NOW - 20), runner("u0", None, 10),
            model("u1", None, 10, used=NOW - 10), runner("u1", None, 10),
            waiting("a", None, host=20),
        ),
        ["r-u0"],
        id="pinned models stay however old, the others go (C17)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("state", "want"), VICTIMS)
def test_the_cheapest_complete_set_of_victims(state: State, want: list[str]) -> None:
    assert victims(make_plan(state)) == want
