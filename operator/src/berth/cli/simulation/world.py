"""What happens to a cluster that obeys the plans? Loads, answers and stops take time; nothing fails.

Told to the planner as in a real cluster: a gateway sends at most ``parallel`` requests to a runner and
says who waits only while no runner is there; agents admit one load at a time by the planner's own
arithmetic and tell of work every 5 s, or at once while draining; memory is what was claimed. A
plan is made when something happened that a controller would see, or when the last one asked to be woken.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from berth.cli.forecast import runner_where
from berth.cli.simulation.fleet import Fleet
from berth.cli.simulation.trace import Request
from berth.cli.simulation.values import Happening, Seat, Tally, emptied, held
from berth.planner.actions import Action, Drain, Plan, Prepare, Reserve, Spare, StartPod, Stop
from berth.planner.actions import Refuse as Refusal
from berth.planner.arithmetic import is_unified, rooms
from berth.planner.plan import make_plan
from berth.planner.restarts import next_restart
from berth.planner.state import HOST, Model, Node, Runner, Stage, State
from berth.planner.state import Drain as Order
from berth.reasons import Reason
from berth.reasons import State as ModelState
from berth.units import Bytes

PROBE_S = 5.0
ADMITTED_S = 60.0
_ROUNDS = 200
"""Plans in one moment: each starts, stops or reserves something, so they come to rest."""


class World:
    """The cluster and its clock. ``run`` plays all requests to their end."""

    def __init__(self, fleet: Fleet, requests: Sequence[Request]) -> None:
        self._start = fleet.state
        self._fleet = fleet
        self.now = fleet.state.now
        self.models = {model.key: _nobody_waits(model) for model in fleet.state.models}
        self.nodes = {node.name: emptied(node, fleet.state) for node in fleet.state.nodes}
        self.seats = {r.uid: self._seated(r) for r in fleet.state.runners}
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.happenings: list[Happening] = []
        self._coming = deque(replace(r, at=self.now + max(0.0, r.at)) for r in requests)
        self._queues: dict[str, deque[Request]] = defaultdict(deque)
        self._freed = dict(fleet.state.recently_freed)
        self._plan = Plan()
        self._serial = 0
        self._is_new = True
        """Something happened since the last plan that a controller would see."""

    def run(self) -> None:
        """Until every request was answered, refused or given up."""
        self._settle()
        while self._is_going_on():
            self.now = min(self._moments())
            self._settle()

    def _is_going_on(self) -> bool:
        in_hand = any(seat.answers for seat in self.seats.values())
        return bool(self._coming) or in_hand or any(self._queues.values())

    def _moments(self) -> Iterable[float]:
        """Every moment at which something is due, none of them past."""
        found = [self._coming[0].at] if self._coming else []
        for seat in self.seats.values():
            found += [t for t in (seat.done_at, seat.probe_at, seat.seen.admitted_until) if t]
            found += seat.answers
        timeout = self._fleet.queue_timeout_s
        found += [queue[0].at + timeout for queue in self._queues.values() if queue]
        found += [self._plan.wake_at] if self._plan.wake_at is not None else []
        return [moment for moment in found if moment > self.now]

    def _settle(self) -> None:
        """Let all that is due happen, and plan until there is nothing more to do."""
        for _ in range(_ROUNDS):
            self._happen()
            woken = self._plan.wake_at is not None and self._plan.wake_at <= self.now
            if not (self._is_new or woken):
                return
            self._is_new = False
            self._plan = make_plan(self.state())
            self._refuse(self._plan)
            done = [self._apply(action) for action in self._plan.actions]
            self._is_new = self._is_new or any(done)
        raise RuntimeError(f"the plans do not come to rest at {self.now - self._start.now:.1f} s")

    def state(self) -> State:
        """What the planner sees now."""
        return replace(
            self._start,
            now=self.now,
            nodes=tuple(self._in_use(node) for node in self.nodes.values()),
            models=tuple(self.models.values()),
            runners=tuple(seat.seen for seat in self.seats.values()),
            recently_freed=dict(self._freed),
        )

    def _in_use(self, node: Node) -> Node:
        """The node with what its runners hold; a unified device's memory is the host's."""
        unified = {device.uuid for device in node.devices if is_unified(device)}
        used: dict[str, int] = defaultdict(int)
        for seat in self.seats.values():
            if seat.seen.node == node.name:
                for place, size in seat.seen.measured:
                    used[HOST if place in unified else place] += size
        devices = tuple(
            device
            if device.used is None
            else replace(device, used=Bytes(device.used + used[device.uuid]))
            for device in node.devices
        )
        return replace(node, devices=devices, available=Bytes(max(0, node.available - used[HOST])))

    # What is due.

    def _happen(self) -> None:
        while self._coming and self._coming[0].at <= self.now:
            request = self._coming.popleft()
            self.tallies[request.model].requests += 1
            self._queues[request.model].append(request)
        for uid in sorted(self.seats):
            self._step(self.seats[uid])
        for uid in sorted(self.seats):
            self._admit(self.seats[uid])
        loaded = {seat.seen.model for seat in self.seats.values()}
        awaited = {key for key, queue in self._queues.items() if queue}
        for key in sorted((loaded | awaited) & self.models.keys()):
            self._serve(key)
        for uid in sorted(self.seats):
            self._report(self.seats[uid])

    def _step(self, seat: Seat) -> None:
        seen = seat.seen
        if seat.done_at is None or seat.done_at > self.now:
            return
        seat.done_at, self._is_new = None, True
        if seen.stage is Stage.PREPARING:
            files = frozenset(digest for digest, _ in self.models[seen.model].files)
            node = self.nodes[seen.node]
            self.nodes[seen.node] = replace(node, files=node.files | files)
            seat.seen = replace(seen, fetched=True)
        elif seen.stage is Stage.STARTING:
            seat.seen = replace(seen, stage=Stage.UP, up_since=self.now)
            self._change(seen.model, load_asked=None, autoload_done=True)
            self._tell("up", seen)
        elif seen.stage is Stage.STOPPING:
            self._gone(seen)

    def _gone(self, seen: Runner) -> None:
        self.seats.pop(seen.uid)
        for place in [uuid for uuid, _ in seen.claim.devices] or [HOST]:
            self._freed[f"{seen.node}/{place}"] = self.now

    def _admit(self, seat: Seat) -> None:
        """The agent's look at a reserved runner: its memory is there, and no other load is."""
        seen = seat.seen
        if seen.stage is not Stage.RESERVED or (seen.admitted_until or 0.0) > self.now:
            return
        others = [
            other.seen
            for other in self.seats.values()
            if other is not seat and other.seen.node == seen.node
        ]
        loading = any(
            r.stage is Stage.STARTING or (r.admitted_until or 0.0) > self.now for r in others
        )
        node = self.nodes[seen.node]
        free = rooms(self._in_use(node), [r for r in others if r.pod_exists])
        unified = sum(size for uuid, size in seen.claim.devices if uuid not in free)
        fits = seen.claim.host + unified <= free[HOST].free and all(
            size <= free[uuid].free for uuid, size in seen.claim.devices if uuid in free
        )
        refused = Reason.LOAD_IN_PROGRESS if loading else None if fits else Reason.NO_MEMORY
        until = None if refused else self.now + ADMITTED_S
        self._is_new |= until is not None or refused is not seen.admission_refused
        seat.seen = replace(seen, admitted_until=until, admission_refused=refused)

    def _serve(self, key: str) -> None:
        """The gateway: answers end, requests are sent in their order, the rest waits."""
        ended = False
        for seat in self._of(key):
            left = [moment for moment in seat.answers if moment > self.now]
            ended, seat.answers = ended or len(left) < len(seat.answers), left
        queue, model = self._queues[key], self.models[key]
        routes = [s for s in self._of(key) if s.seen.stage is Stage.UP and s.seen.drain is None]
        sent = False
        for seat in sorted(routes, key=lambda s: (len(s.answers), s.seen.uid)):
            while queue and len(seat.answers) < max(1, model.parallel):
                self._send(seat, queue.popleft())
                sent = True
        if ended or sent:
            self._change(key, used=self.now)
        self._give_up(key)
        count = 0 if routes else len(queue)
        self._is_new |= bool(count) != bool(model.waiting)
        since = (model.waiting_since or self.now) if count else None
        self._change(key, waiting=count, waiting_since=since)

    def _send(self, seat: Seat, request: Request) -> None:
        tally = self.tallies[request.model]
        tally.served += 1
        tally.waits.append(self.now - request.at)
        ends = self.now + request.seconds
        # An answer that takes no time is over: nothing would ever be due at its end.
        if ends > self.now:
            seat.answers.append(ends)

    def _give_up(self, key: str) -> None:
        queue, timeout = self._queues[key], self._fleet.queue_timeout_s
        while queue and self.now - queue[0].at >= timeout:
            request = queue.popleft()
            self.tallies[key].gave_up += 1
            text = f"a request of {self._shown(request.at)} waited {timeout:.0f} s"
            self.happenings.append(Happening(self.now, "gave-up", key, text))

    def _report(self, seat: Seat) -> None:
        """The agent's probe: at once while draining, else with the next of every 5 s."""
        seen, busy = seat.seen, len(seat.answers)
        if seen.stage is not Stage.UP:
            return
        due = seat.probe_at is not None and seat.probe_at <= self.now
        if seen.drain is not None or due:
            quiet = None if busy or seen.drain is None else (seen.quiet_since or self.now)
            seat.seen = replace(seen, busy=busy, quiet_since=quiet)
            self._is_new |= seat.seen != seen
            seat.probe_at = None
        if seat.seen.busy != busy and seat.probe_at is None:
            up_since = seen.up_since or self.now
            seat.probe_at = up_since + PROBE_S * ((self.now - up_since) // PROBE_S + 1)

    # What the controller does.

    def _refuse(self, plan: Plan) -> None:
        """The gateway answers at once where no wait will help."""
        final = {a.model: a.message for a in plan.actions if isinstance(a, Refusal) and a.final}
        for verdict in plan.verdicts:
            if verdict.state is ModelState.FAILED or verdict.reason is Reason.SUSPENDED:
                final.setdefault(verdict.model, verdict.message)
        for key, message in sorted(final.items()):
            queue = self._queues[key]
            if not queue or any(seat.seen.stage is Stage.UP for seat in self._of(key)):
                continue
            self.tallies[key].refused += len(queue)
            self.happenings.append(Happening(self.now, "refused", key, message))
            queue.clear()
            self._change(key, waiting=0, waiting_since=None)
            self._is_new = True

    def _apply(self, action: Action) -> bool:
        match action:
            case Prepare() | Reserve():
                self._place(action)
            case StartPod(runner=uid):
                self._start_pod(self.seats[uid])
            case Drain(runner=uid):
                seat = self.seats[uid]
                order = Order(action.reason, self.now, action.deadline_s, action.newcomer)
                seat.seen = replace(seat.seen, drain=order, quiet_since=None)
            case Spare(runner=uid):
                seat = self.seats[uid]
                seat.seen = replace(seat.seen, drain=None, quiet_since=None)
                self._tell("spared", seat.seen)
            case Stop(runner=uid):
                self._stop(self.seats[uid], action)
            case _:
                return False
        return True

    def _place(self, action: Prepare | Reserve) -> None:
        if isinstance(action, Reserve) and action.runner:
            seat = self.seats[action.runner]
            seat.seen = replace(
                seat.seen, stage=Stage.RESERVED, claim=action.claim, reserved_at=self.now
            )
            return
        self._serial += 1
        stage = Stage.PREPARING if isinstance(action, Prepare) else Stage.RESERVED
        seen = Runner(
            uid=f"simulated-{self._serial:06d}",
            name=f"{action.model}-{action.ordinal}-{action.attempt}",
            model=action.model,
            node=action.place.node,
            claim=action.claim,
            stage=stage,
            ordinal=action.ordinal,
            attempt=action.attempt,
            created=self.now,
            settings_hash=self.models[action.model].settings_hash,
            reserved_at=self.now if stage is Stage.RESERVED else None,
        )
        self.seats[seen.uid] = self._seated(seen)

    def _seated(self, seen: Runner) -> Seat:
        """A runner with its step under way, which ends after its model's own time."""
        spans = self._fleet.spans.get(seen.model)
        steps = {Stage.PREPARING: "fetch", Stage.STARTING: "load", Stage.STOPPING: "stop"}
        seat = Seat(replace(seen, busy=0, quiet_since=None))
        if seen.stage in steps and spans is not None and not seen.fetched:
            seat.done_at = self.now + float(getattr(spans, steps[seen.stage]))
        if seen.pod_exists:
            seat.seen = replace(seat.seen, measured=held(seen))
        return seat

    def _start_pod(self, seat: Seat) -> None:
        seen = seat.seen
        seat.seen = replace(
            seen, stage=Stage.STARTING, pod_exists=True, admitted_until=None, measured=held(seen)
        )
        seat.done_at = self.now + self._fleet.spans[seen.model].load
        self.tallies[seen.model].loads += 1
        self._tell("load", seen)

    def _stop(self, seat: Seat, action: Stop) -> None:
        seen, tally = seat.seen, self.tallies[seat.seen.model]
        seat.answers = []
        if not seen.pod_exists or seen.stage is Stage.FAILED:
            self._note_failure(seen, action.reason)
            self.seats.pop(seen.uid)
            return
        tally.evicted += action.reason is Reason.MAKE_ROOM
        tally.unloaded += action.reason is not Reason.MAKE_ROOM
        newcomer = f" for {seen.drain.newcomer}" if seen.drain and seen.drain.newcomer else ""
        evicted = action.reason is Reason.MAKE_ROOM
        self._tell("evict" if evicted else "unload", seen, newcomer or f": {action.reason}")
        seat.seen = replace(seen, stage=Stage.STOPPING, pod_deleting=True)
        spans = self._fleet.spans.get(seen.model)
        seat.done_at = self.now + (spans.stop if spans is not None else 0.0)

    def _note_failure(self, seen: Runner, reason: Reason) -> None:
        """A reservation that was given up: the planner leaves the place out for a while."""
        model = self.models.get(seen.model)
        if model is not None:
            restarts = next_restart(model.restarts, now=self.now, reason=reason, node=seen.node)
            self._change(seen.model, restarts=restarts)

    def _of(self, key: str) -> list[Seat]:
        return [seat for _, seat in sorted(self.seats.items()) if seat.seen.model == key]

    def _change(self, key: str, **fields: object) -> None:
        if key in self.models:
            self.models[key] = replace(self.models[key], **fields)  # type: ignore[arg-type]

    def _tell(self, what: str, seen: Runner, more: str = "") -> None:
        text = f"{runner_where(self._start, seen)}{more}"
        self.happenings.append(Happening(self.now, what, seen.model, text))

    def _shown(self, at: float) -> str:
        return f"{at - self._start.now:.1f} s"


def _nobody_waits(model: Model) -> Model:
    return replace(model, waiting=0, waiting_since=None)
