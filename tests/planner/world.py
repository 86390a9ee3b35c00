"""What would really happen to a cluster that obeys the plans? A small model of the world, in seconds.

Agents admit by the same arithmetic, loads and stops take time, requests come and end, reports of
work arrive late, nodes vanish and come back. A plan is made only when something happened or when
the last plan asked to be woken: a wake-up that is missing shows as a request that is never served.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from berth.planner.actions import Drain, Plan, Prepare, Reserve, Spare, StartPod, Stop
from berth.planner.arithmetic import rooms
from berth.planner.plan import make_plan
from berth.planner.restarts import OF_THE_PLACE, next_restart
from berth.planner.rollout import Asked, Change, Phase, Rollout, after_plan, plan_rollout
from berth.planner.state import HOST, Claim, Model, Node, Restarts, Runner, Stage, State
from berth.planner.state import Drain as Order
from berth.reasons import Reason
from berth.units import Bytes

MAY_CUT = {
    Reason.DELETED, Reason.SUSPENDED, Reason.UNLOADED, Reason.NODE_DRAINED, Reason.HELD,
    Reason.KILLED, Reason.NODE_LOST, Reason.CRASHED,
}  # fmt: skip
KEEPS_ITS_TURN = {Reason.IDLE, Reason.UNLOADED, Reason.SUSPENDED, Reason.KILLED}
PROBE_S = 5.0
ADMITTED_S = 60.0
MOST_PLANS_AT_ONCE = 12


@dataclass
class Truth:
    """A runner as it really is; ``seen`` is what the planner is told."""

    seen: Runner
    taken: Claim
    load_s: float
    stop_s: float
    done_at: float | None = None
    """When the step under way (fetch, load, stop) ends."""
    answers: list[float] = field(default_factory=list)
    """When each request in hand ends."""
    next_probe: float | None = None


@dataclass
class World:
    """The cluster, its clock, and what has been seen to go wrong."""

    nodes: dict[str, Node]
    models: dict[str, Model]
    now: float = 1000.0
    runners: dict[str, Truth] = field(default_factory=dict)
    queues: dict[str, list[float]] = field(default_factory=dict)
    """By model: how long each waiting request will take."""
    served: dict[str, int] = field(default_factory=dict)
    loads: int = 0
    cut: int = 0
    serial: int = 0
    fetch_s: float = 3.0
    load_s: float = 4.0
    stop_s: float = 2.0
    factor: dict[str, float] = field(default_factory=dict)
    """By model: what it really takes as a share of its need; above 1 the estimate was wrong."""
    plan: Plan = field(default_factory=Plan)
    freed: dict[str, float] = field(default_factory=dict)
    promises: tuple[Callable[["World", State, Plan], None], ...] = ()
    """What must hold for every plan."""
    history: list[str] = field(default_factory=list)
    is_estimate_trusted: bool = True
    interrupted_after: int | None = None
    """The controller dies after so many actions of its next plan, and another one takes over."""
    measures_loads: bool = True
    """Whether the agents can tell what a runner holds while it loads."""
    bad: set[str] = field(default_factory=set)
    """Settings with which no runner comes up."""
    changes: dict[str, Change] = field(default_factory=dict)
    """By model: what the controller remembers of its settings."""
    settings: dict[str, str] = field(default_factory=dict)
    """By model: with which settings the present plan starts its runners."""

    # What the planner is told.

    def state(self) -> State:
        return State(
            now=self.now,
            epoch=1,
            nodes=tuple(self._with_use(node) for node in self.nodes.values()),
            models=tuple(self._with_settings(model) for model in self.models.values()),
            runners=tuple(self._as_one(truth.seen) for truth in self.runners.values()),
            healthy_since=0.0,
            recently_freed=dict(self.freed),
        )

    def parts_of(self, uid: str) -> list[Truth]:
        return [t for t in self.runners.values() if t.seen.part_of == uid]

    def _as_one(self, seen: Runner) -> Runner:
        """The head of a group tells for all: admitted when all are, ended when one is."""
        parts = [t.seen for t in self.parts_of(seen.uid)]
        if not parts:
            return seen
        fallen = [p for p in parts if p.stage is Stage.FAILED]
        if fallen and seen.stage is not Stage.STOPPING:
            return replace(seen, stage=Stage.FAILED, exit_reason=fallen[0].exit_reason)
        until = [p.admitted_until for p in (seen, *parts)]
        known = [at for at in until if at is not None]
        return replace(
            seen,
            admitted_until=min(known) if len(known) == len(until) else None,
            fetched=all(p.fetched for p in (seen, *parts)),
        )

    def rollout(self, model: Model) -> Rollout:
        """With which settings the model's next runner starts, as the controller works it out."""
        before = self.changes.get(model.key, Change())
        asked = Asked(model.settings_hash, restarts=model.restarts)
        return plan_rollout(before, asked, [t.seen for t in self.of(model.key)], self.now)

    def _with_settings(self, model: Model) -> Model:
        rollout = self.rollout(model)
        self.changes[model.key] = rollout.change
        restarts = model.restarts
        if rollout.change.good and rollout.settings != rollout.change.good:
            restarts = Restarts(excluded=restarts.excluded)
        return replace(
            model,
            settings_hash=rollout.settings,
            owed=rollout.change.owed,
            on_trial=rollout.phase is Phase.TRIAL,
            restarts=restarts,
        )

    def _with_use(self, node: Node) -> Node:
        used = {HOST: node.capacity - node.available}
        for truth in self.runners.values():
            if truth.seen.node == node.name and self.has_memory(truth):
                used[HOST] += truth.taken.host
                for uuid, size in truth.taken.devices:
                    used[uuid] = used.get(uuid, 0) + size
        devices = tuple(
            replace(d, used=Bytes((d.used or 0) + used.get(d.uuid, 0))) for d in node.devices
        )
        return replace(node, devices=devices, available=Bytes(node.capacity - used[HOST]))

    def has_memory(self, truth: Truth) -> bool:
        return truth.seen.pod_exists and truth.seen.stage is not Stage.FAILED

    # Time.

    def run(self, seconds: float) -> None:
        """Let time pass, from event to event."""
        end = self.now + seconds
        self.settle()
        while True:
            due = [t for t in self._events() if t > self.now]
            if self.plan.wake_at is not None and self.plan.wake_at > self.now:
                due.append(self.plan.wake_at)
            if not due or min(due) > end:
                break
            self.now = min(due)
            self.settle()
        self.now = end

    def _events(self) -> list[float]:
        found = []
        for truth in self.runners.values():
            found += [t for t in (truth.done_at, truth.next_probe, truth.seen.admitted_until) if t]
            found += truth.answers
        return found

    def settle(self) -> None:
        """Let everything that is due happen, and plan until the plan has nothing more to do."""
        for _ in range(MOST_PLANS_AT_ONCE):
            self._happen()
            before = self.state()
            self.plan = make_plan(before)
            for promise in self.promises:
                promise(self, before, self.plan)
            chosen = self.plan.actions[: self.interrupted_after]
            self.interrupted_after = None
            self._remember(Plan(tuple(chosen)))
            self.settings = {model.key: model.settings_hash for model in before.models}
            done = [self._apply(action) for action in chosen]
            if not any(done):
                return
        raise AssertionError(f"plans do not come to rest: {self.history[-12:]}")

    def _remember(self, plan: Plan) -> None:
        for key, change in self.changes.items():
            seen = [t.seen for t in self.of(key)]
            self.changes[key] = after_plan(change, plan, seen, self.now)

    def _happen(self) -> None:
        for uid in sorted(self.runners):
            truth = self.runners[uid]
            if not self.nodes[truth.seen.node].ready:
                continue
            self._step(truth)
        for uid in sorted(self.runners):
            self._admit(self.runners[uid])
        for key in sorted(self.models):
            self._serve(key)
        for uid in sorted(self.runners):
            self._report(self.runners[uid])

    def _step(self, truth: Truth) -> None:
        seen, due = truth.seen, truth.done_at is not None and truth.done_at <= self.now
        if seen.stage is Stage.PREPARING and due:
            truth.seen = replace(seen, fetched=True)
            files = {digest for digest, _ in self.models[seen.model].files}
            node = self.nodes[seen.node]
            self.nodes[seen.node] = replace(node, files=node.files | files)
            truth.done_at = None
        elif seen.stage is Stage.STARTING and due and seen.settings_hash in self.bad:
            truth.seen = replace(seen, stage=Stage.FAILED, exit_reason=Reason.SMOKE_FAILED)
            truth.done_at = None
        elif seen.stage is Stage.STARTING and due:
            measured = self.measured(truth)
            truth.seen = replace(seen, stage=Stage.UP, up_since=self.now, measured=measured)
            truth.done_at = None
            model = self.models[seen.model]
            self.models[seen.model] = replace(model, load_asked=None, autoload_done=True)
        elif seen.stage is Stage.STOPPING and due:
            self._gone(truth)

    def measured(self, truth: Truth) -> tuple[tuple[str, Bytes], ...]:
        return (*truth.taken.devices, (HOST, truth.taken.host))

    def _gone(self, truth: Truth) -> None:
        seen = truth.seen
        self.runners.pop(seen.uid)
        for place in [uuid for uuid, _ in seen.claim.devices] or [HOST]:
            self.freed[f"{seen.node}/{place}"] = self.now

    def _admit(self, truth: Truth) -> None:
        """The agent's look at a reserved runner: the memory is there, and no other load is."""
        seen, node = truth.seen, self.nodes[truth.seen.node]
        if seen.stage is not Stage.RESERVED or seen.pod_exists or not node.ready:
            return
        if seen.admitted_until is not None and seen.admitted_until > self.now:
            return
        others = [
            t.seen for t in self.runners.values() if t.seen.node == node.name and t is not truth
        ]
        mine = seen.part_of or seen.uid
        others = [r for r in others if (r.part_of or r.uid) != mine]
        busy = [
            r for r in others if r.stage is Stage.STARTING or (r.admitted_until or 0) > self.now
        ]
        holding = [r for r in others if r.pod_exists]
        free = rooms(self._with_use(node), holding)
        fits = seen.claim.host <= free[HOST].free
        fits = fits and all(size <= free[uuid].free for uuid, size in seen.claim.devices)
        refused = Reason.LOAD_IN_PROGRESS if busy else None if fits else Reason.NO_MEMORY
        until = None if refused else self.now + ADMITTED_S
        truth.seen = replace(seen, admitted_until=until, admission_refused=refused)

    def _serve(self, key: str) -> None:
        """The gateway: sends to runners that are up and not draining, else says who waits."""
        model = self.models[key]
        for truth in self.of(key):
            ended = [t for t in truth.answers if t <= self.now]
            if ended and self.nodes[truth.seen.node].ready:
                truth.answers = [t for t in truth.answers if t > self.now]
                self.served[key] = self.served.get(key, 0) + len(ended)
                model = replace(model, used=self.now)
        queue = self.queues.setdefault(key, [])
        routes = [t for t in self.of(key) if t.seen.stage is Stage.UP and t.seen.drain is None]
        routes = [t for t in routes if self.nodes[t.seen.node].ready]
        for truth in routes:
            while queue and len(truth.answers) < model.parallel:
                truth.answers.append(self.now + queue.pop(0))
                truth.next_probe = truth.next_probe or self.now + PROBE_S
                model = replace(model, used=self.now)
        count = 0 if routes else len(queue)
        since = (model.waiting_since or self.now) if count else None
        self.models[key] = replace(model, waiting=count, waiting_since=since)

    def _report(self, truth: Truth) -> None:
        """The agent's probe: every 5 s, at once while draining."""
        seen = truth.seen
        if not self.nodes[seen.node].ready:
            return
        if seen.drain is not None or (
            truth.next_probe is not None and truth.next_probe <= self.now
        ):
            seen = replace(seen, busy=len(truth.answers))
            truth.next_probe = self.now + PROBE_S if truth.answers else None
        if seen.drain is not None and seen.stage is Stage.UP:
            quiet = None if truth.answers else (seen.quiet_since or self.now)
            seen = replace(seen, quiet_since=quiet)
        truth.seen = seen

    def of(self, key: str) -> list[Truth]:
        mine = (t for _, t in sorted(self.runners.items()) if t.seen.model == key)
        return [t for t in mine if not t.seen.part_of]

    # What the controller does.

    def _apply(self, action: object) -> bool:
        match action:
            case Prepare() | Reserve():
                self._create(action)
            case StartPod(runner=uid):
                truth = self.runners[uid]
                measured = self.measured(truth) if self.measures_loads else ()
                truth.seen = replace(
                    truth.seen,
                    stage=Stage.STARTING,
                    pod_exists=True,
                    admitted_until=None,
                    measured=measured,
                )
                truth.done_at = self.now + truth.load_s
                self.loads += 1
                for part in self.parts_of(uid):
                    part.seen = replace(
                        part.seen, stage=Stage.STARTING, pod_exists=True, admitted_until=None
                    )
                    part.done_at = self.now + part.load_s
            case Drain(runner=uid):
                truth = self.runners[uid]
                order = Order(action.reason, self.now, action.deadline_s, action.newcomer)
                truth.seen = replace(truth.seen, drain=order, quiet_since=None)
            case Spare(runner=uid):
                truth = self.runners[uid]
                truth.seen = replace(truth.seen, drain=None, quiet_since=None)
            case Stop(runner=uid):
                self._stop(self.runners[uid], action)
            case _:
                return False
        self.history.append(f"{self.now:.1f} {action}"[:160])
        return True

    def _create(self, action: Prepare | Reserve) -> None:
        if isinstance(action, Reserve) and action.runner:
            for seat, part in zip(action.seats, self.parts_of(action.runner), strict=True):
                assert part.seen.node == seat.place.node
                part.seen = replace(part.seen, stage=Stage.RESERVED, claim=seat.claim)
                part.taken = seat.claim
            truth = self.runners[action.runner]
            truth.seen = replace(
                truth.seen, stage=Stage.RESERVED, claim=action.claim, reserved_at=self.now
            )
        else:
            self.serial += 1
            uid = f"r{self.serial:04d}"
            name = f"{action.model}-{action.ordinal}-{action.attempt}"
            assert name not in {t.seen.name for t in self.runners.values()}, f"{name} exists"
            stage = Stage.PREPARING if isinstance(action, Prepare) else Stage.RESERVED
            seen = Runner(
                uid=uid, name=name, model=action.model, node=action.place.node, claim=action.claim,
                stage=stage, ordinal=action.ordinal, attempt=action.attempt, created=self.now,
                settings_hash=self.settings[action.model],
                reserved_at=self.now if stage is Stage.RESERVED else None,
            )  # fmt: skip
            truth = Truth(seen, action.claim, self.load_s, self.stop_s)
            truth.done_at = self.now + self.fetch_s if stage is Stage.PREPARING else None
            self.runners[uid] = truth
            for rank, seat in enumerate(action.seats, start=1):
                part = replace(
                    seen, uid=f"{uid}.{rank}", name=f"{name}-r{rank}", node=seat.place.node,
                    claim=seat.claim, part_of=uid,
                )  # fmt: skip
                self.runners[part.uid] = Truth(part, seat.claim, self.load_s, self.stop_s)
                self.runners[part.uid].done_at = truth.done_at
        share = self.factor.get(action.model, 1.0)
        devices = tuple((uuid, Bytes(int(size * share))) for uuid, size in action.claim.devices)
        truth.taken = Claim(Bytes(int(action.claim.host * share)), devices)

    def _stop(self, truth: Truth, action: Stop) -> None:
        seen = truth.seen
        if truth.answers:
            assert action.reason in MAY_CUT, f"{action.reason} cut {len(truth.answers)} answers"
            self.cut += len(truth.answers)
            truth.answers = []
        if action.reason not in KEEPS_ITS_TURN:
            self.models[seen.model] = replace(self.models[seen.model], autoload_done=False)
        self._record(seen, action.reason)
        for part in self.parts_of(seen.uid):
            self._end(part)
        self._end(truth)

    def _end(self, truth: Truth) -> None:
        seen = truth.seen
        if not seen.pod_exists:
            self.runners.pop(seen.uid)
            return
        lost = not self.nodes[seen.node].ready
        truth.seen = replace(seen, stage=Stage.STOPPING, pod_deleting=True, foreign_deletion=False)
        truth.done_at = None if lost else self.now + truth.stop_s
        if seen.stage is Stage.FAILED:
            self._gone(truth)

    def _record(self, seen: Runner, reason: Reason) -> None:
        """What the controller notes of a failure; a wished-for end is none, nor is a trial's."""
        good = self.changes[seen.model].good
        if good and seen.settings_hash != good and reason not in OF_THE_PLACE:
            return
        if seen.stage in (Stage.RESERVED, Stage.FAILED) or reason is Reason.KILLED:
            model = self.models[seen.model]
            restarts = next_restart(model.restarts, now=self.now, reason=reason, node=seen.node)
            self.models[seen.model] = replace(model, restarts=restarts)

    # What happens to it.

    def request(self, key: str, seconds: float) -> None:
        self.queues.setdefault(key, []).append(seconds)
        self.settle()

    def crash(self, uid: str) -> None:
        truth = self.runners[uid]
        self.cut += len(truth.answers)
        truth.answers = []
        truth.seen = replace(truth.seen, stage=Stage.FAILED, exit_reason=Reason.CRASHED, busy=0)
        self.settle()

    def change(self, key: str, **fields: object) -> None:
        self.models[key] = replace(self.models[key], **fields)  # type: ignore[arg-type]
        self.settle()

    def change_node(self, name: str, **fields: object) -> None:
        self.nodes[name] = replace(self.nodes[name], **fields)  # type: ignore[arg-type]
        for truth in self.runners.values():
            stopping = truth.seen.node == name and truth.seen.stage is Stage.STOPPING
            if stopping and truth.done_at is None and self.nodes[name].ready:
                truth.done_at = self.now + 1.0
        self.settle()
