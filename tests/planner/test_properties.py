"""Do the planner's promises hold whatever happens? Random days in the model of the world."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from berth.planner.state import Policy, Stage
from builders import gib, model, node
from planner.promises import check_promises
from planner.world import World

NAMES = ("ns/a", "ns/b", "ns/c", "ns/d")
name = st.sampled_from(NAMES)
seconds = st.sampled_from([0.05, 0.5, 2.0, 7.0, 20.0, 61.0, 130.0])
LONG_S = 3000.0
"""More than every load, back-off and window that a day can leave behind; answers come on top."""


class Days(RuleBasedStateMachine):
    """Requests come and go, runners crash, nodes vanish, settings change; the world checks itself."""

    world: World
    trusted = True

    @initialize(
        gpus=st.integers(1, 2),
        nodes=st.integers(1, 2),
        sizes=st.tuples(*[st.sampled_from([3.0, 8.0, 13.0, 20.0])] * 4),
        files=st.booleans(),
        cap=st.sampled_from([0, 0, 0, 1, 2]),
        autoload=st.sampled_from([(), (), ("Fit",), ("b", "c")]),
        spread=st.booleans(),
        measures=st.booleans(),
        load_s=st.sampled_from([1.0, 9.0, 70.0]),
        stop_s=st.sampled_from([0.5, 20.0]),
    )
    def start(
        self, gpus: int, nodes: int, sizes: tuple[float, ...], files: bool, cap: int,
        autoload: tuple[str, ...], spread: bool, measures: bool, load_s: float, stop_s: float,
    ) -> None:  # fmt: skip
        group = Policy(name="group", max_runners=cap, autoload=autoload, load_order=("d", "b"))
        fleet = [node(f"gpu-{i}", gpus=gpus, policy=group) for i in range(1, nodes + 1)]
        models = [
            model(key, size, files=((f"sha-{key}", gib(1)),) if files else (), idle_timeout_s=300)
            for key, size in zip(NAMES, sizes, strict=True)
        ]
        models[0] = replace(models[0], per_device=spread)
        self.world = World(
            {n.name: n for n in fleet},
            {m.key: m for m in models},
            promises=(check_promises,),
            load_s=load_s,
            stop_s=stop_s,
            measures_loads=measures,
        )
        self.asked = 0
        self.work_s = 0.0

    @rule(key=name, length=st.sampled_from([0.1, 3.0, 40.0, 200.0]), count=st.integers(1, 3))
    def request(self, key: str, length: float, count: int) -> None:
        for _ in range(count):
            self.asked += 1
            self.work_s += length
            self.world.request(key, length)

    @rule(length=seconds)
    def time_passes(self, length: float) -> None:
        self.world.run(length)

    @rule(index=st.integers(0, 9))
    def crash(self, index: int) -> None:
        pods = [u for u, t in sorted(self.world.runners.items()) if t.seen.pod_exists]
        pods = [u for u in pods if self.world.runners[u].seen.stage in (Stage.STARTING, Stage.UP)]
        if pods:
            self.world.crash(pods[index % len(pods)])

    @rule(index=st.integers(0, 1))
    def node_vanishes(self, index: int) -> None:
        names = sorted(self.world.nodes)
        gone = self.world.nodes[names[index % len(names)]]
        if gone.ready:
            self.world.change_node(gone.name, ready=False, not_ready_since=self.world.now)

    @rule()
    def nodes_come_back(self) -> None:
        for key in sorted(self.world.nodes):
            back = {"ready": True, "not_ready_since": None, "schedulable": True, "held_by": ""}
            self.world.change_node(key, **back)

    @rule(index=st.integers(0, 1))
    def hold(self, index: int) -> None:
        names = sorted(self.world.nodes)
        self.world.change_node(names[index % len(names)], held_by="hold")

    @rule(index=st.integers(0, 1))
    def cordon(self, index: int) -> None:
        names = sorted(self.world.nodes)
        self.world.change_node(names[index % len(names)], schedulable=False)

    @rule(key=name, version=st.sampled_from(["h1", "h2"]))
    def settings_change(self, key: str, version: str) -> None:
        self.world.change(key, settings_hash=version)

    @rule(key=name, count=st.integers(0, 2))
    def scale(self, key: str, count: int) -> None:
        self.world.change(key, min_replicas=count)

    @rule(key=name)
    def unload(self, key: str) -> None:
        self.world.change(key, not_before=self.world.now)

    @rule(key=name, off=st.booleans())
    def suspend(self, key: str, off: bool) -> None:
        self.world.change(key, suspended=off)

    @rule(key=name)
    def pin(self, key: str) -> None:
        self.world.change(key, pinned=not self.world.models[key].pinned)

    @rule(count=st.integers(0, 2))
    def controller_dies_in_the_middle_of_a_plan(self, count: int) -> None:
        self.world.interrupted_after = count

    @rule(size=st.sampled_from([0.0, 4.0, 20.0]))
    def strangers_come(self, size: float) -> None:
        first = self.world.nodes["gpu-1"]
        devices = tuple(replace(d, used=gib(size)) for d in first.devices)
        self.world.is_estimate_trusted = self.world.is_estimate_trusted and size == 0.0
        self.world.change_node("gpu-1", devices=devices)

    def teardown(self) -> None:
        """Everybody is served in the end: nothing waits for a wake-up that never comes."""
        if not hasattr(self, "world"):
            return
        for key in sorted(self.world.models):
            self.world.change(key, suspended=False, pinned=False, min_replicas=0, not_before=None)
        self.strangers_come(0.0)
        self.nodes_come_back()
        self.world.run(LONG_S + 3 * self.work_s)
        left = {key: len(queue) for key, queue in self.world.queues.items() if queue}
        assert not left, f"{left} still wait: {self.world.plan.verdicts}"
        assert sum(self.world.served.values()) + self.world.cut == self.asked


class WrongEstimates(Days):
    """The same days where models take up to twice what was estimated, or half."""

    @rule(key=name, share=st.sampled_from([0.5, 1.0, 1.15]))
    def estimate_is_wrong(self, key: str, share: float) -> None:
        self.world.factor[key] = share
        self.world.is_estimate_trusted = False


class Switches(Days):
    """The same days where some settings never come up: what was good serves all the same."""

    @rule(key=name, version=st.sampled_from(["h1", "h2", "bad-1", "bad-2"]))
    def settings_change_to_what_may_not_work(self, key: str, version: str) -> None:
        self.world.bad = {"bad-1", "bad-2"}
        change = self.world.changes.get(key)
        if change is not None and change.good:
            self.world.change(key, settings_hash=version)

    def teardown(self) -> None:
        """Everybody is served, and nothing that failed is tried over and over."""
        super().teardown()
        if not hasattr(self, "world"):
            return
        before = self.world.loads
        self.world.run(LONG_S)
        assert self.world.loads == before, "loads go on although nobody asks"
        up = {t.seen.settings_hash for t in self.world.runners.values() if t.seen.stage is Stage.UP}
        assert up <= {"h1", "h2"}


def _run(machine: type[Days], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_days_keep_every_promise() -> None:
    _run(Days, 60)


def test_random_days_with_wrong_estimates_lose_nobody() -> None:
    _run(WrongEstimates, 30)


def test_random_days_with_settings_that_fail_end_with_what_was_good() -> None:
    _run(Switches, 40)
