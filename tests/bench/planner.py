"""How long does a pass take, and how does it grow with the fleet?

``python tests/bench/planner.py`` prints milliseconds at four sizes and the exponents fitted to them;
1 is linear; n log n shows as 1.17 over these sizes, and what is above that in the goal is noise.
"""

import gc
import math
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from berth.planner.plan import make_plan
from berth.planner.state import Model, Runner, State
from builders import NOW, gib, model, node, runner, waiting

SIZES = (125, 250, 500, 1000)
"""Nodes. Each has 4 GPUs with a runner on each; 10 models a node; one new demand for 10 nodes."""
GOAL_GROWTH = 1.25
GOAL_SECONDS = 2.0
GOAL_IDLE_SECONDS = 0.5


def fleet(nodes: int, demands: int, *, busy: float = 0.3) -> State:
    """A full fleet: every GPU holds one runner, a share of them busy, most models are down."""
    dice = random.Random(7)
    machines = tuple(node(f"gpu-{n:04d}", gpus=4, host=513) for n in range(nodes))
    models: list[Model] = []
    runners: list[Runner] = []
    for index in range(nodes * 10):
        name, size = f"m{index:05d}", dice.choice([6.0, 10.0, 14.0, 20.0])
        loaded = index < nodes * 4
        if not loaded and demands > 0:
            demands -= 1
            models.append(waiting(name, size, since=NOW - dice.random() * 30))
            continue
        models.append(model(name, size, used=NOW - dice.randrange(60, 1500)))
        if loaded:
            place = machines[index // 4].name
            hands = int(dice.random() < busy)
            held = ((f"GPU-{place}-{index % 4}", gib(size)), ("host", gib(1)))
            runners.append(runner(name, size, on=place, at=index % 4, busy=hands, measured=held))
    return State(now=NOW, epoch=1, nodes=machines, models=tuple(models), runners=tuple(runners))


def seconds(state: State, *, runs: int) -> float:
    """CPU seconds of the best of so many passes: a pass waits for nothing, its machine may be shared."""
    found = []
    gc.collect()
    gc.freeze()  # The snapshot is not garbage; walking it again and again is not the planner's time.
    for _ in range(runs):
        start = time.process_time()
        make_plan(state)
        found.append(time.process_time() - start)
    gc.unfreeze()
    return min(found)


def growth(sizes: tuple[int, ...], times: list[float]) -> float:
    """The exponent of a power law fitted by least squares in logarithms."""
    xs, ys = [math.log(n) for n in sizes], [math.log(t) for t in times]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum(
        (a - x) ** 2 for a in xs
    )


def main() -> None:
    full, idle, one, stuck = [], [], [], []
    for count in SIZES:
        full.append(seconds(fleet(count, count // 10), runs=4))
        idle.append(seconds(fleet(count, 0), runs=4))
        one.append(seconds(fleet(count, 1), runs=4))
        stuck.append(seconds(fleet(count, count // 10, busy=1.0), runs=4))
        print(
            f"{count:5d} nodes x 4 GPUs, {count * 10:6d} models, {count * 4:5d} runners: "
            f"{count // 10:3d} demands {full[-1] * 1e3:8.1f} ms, one {one[-1] * 1e3:7.1f} ms, "
            f"idle {idle[-1] * 1e3:7.1f} ms, all busy {stuck[-1] * 1e3:7.1f} ms"
        )
    print(f"ratio planner-growth-idle {growth(SIZES, idle):.2f} goal {GOAL_GROWTH}")
    print(f"ratio planner-growth-one {growth(SIZES, one):.2f} goal {GOAL_GROWTH}")
    print(f"ratio planner-growth {growth(SIZES, full):.2f} goal {GOAL_GROWTH}")
    print(f"ratio planner-growth-refused {growth(SIZES, stuck):.2f} goal {GOAL_GROWTH}")
    print(f"ratio planner-pass-seconds {full[-1]:.2f} goal {GOAL_SECONDS}")
    print(f"ratio planner-idle-seconds {idle[-1]:.2f} goal {GOAL_IDLE_SECONDS}")


if __name__ == "__main__":
    main()
