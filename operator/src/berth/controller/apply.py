"""How does a plan become writes? Many at once, each after what it depends on; an old plan is dropped."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

from berth.api.meta import timestamp
from berth.api.model import Model
from berth.api.runner import DrainOrder, Runner
from berth.controller.failures import Failure, failure_of
from berth.controller.launch import (
    Stamp,
    cards_of,
    environment_of,
    name_of,
    runner_spec,
    wire_claim,
)
from berth.controller.observe import Observation
from berth.controller.observe_runners import Entry
from berth.controller.outbox import Outbox
from berth.controller.outcomes import Outcome
from berth.controller.priced import Priced
from berth.controller.removal import RUNNERS, delete_pod, delete_runner
from berth.controller.store import Store
from berth.controller.telling import Happening, Teller
from berth.controller.turns import Turns
from berth.controller.variants import variant_of
from berth.kube.client import ApiError, Kube, Object
from berth.kube.refs import PODS
from berth.manifests.holder import HolderSettings
from berth.manifests.names import member_name
from berth.manifests.objects import runner as runner_body
from berth.manifests.pod import PodSettings, runner_pod
from berth.planner.actions import (
    Action,
    Drain,
    Plan,
    Prepare,
    Refuse,
    Reserve,
    Seat,
    Spare,
    StartPod,
    Stop,
    Wait,
    seats_of,
)
from berth.planner.state import Stage
from berth.reasons import Reason

log = logging.getLogger(__name__)

MANAGER = "berth-controller"
PLAN_LIFETIME_S = 5.0


class StalePlanError(Exception):
    """The cluster is not what the plan was made for: observe again."""


@dataclass
class Applied:
    """What a pass did, for metrics and tests."""

    placed: int = 0
    stopped: int = 0
    evicted: int = 0
    failures: list[Failure] = field(default_factory=list)
    """Loads that ended by this pass's own doing: refused by the API server, too slow, killed."""


@dataclass(frozen=True)
class Hands:
    """What applying works with."""

    kube: Kube
    store: Store
    teller: Teller
    outbox: Outbox
    stamp: Stamp
    clock: Callable[[], float]
    leads: Callable[[], bool]
    pod_settings: PodSettings
    holders: HolderSettings = field(default_factory=HolderSettings)


class Application:
    """The writes of one plan."""

    def __init__(self, hands: Hands, seen: Observation) -> None:
        self._hands = hands
        self._state = seen.state
        self._models = seen.models
        self._entries = {entry.uid: entry for entry in seen.entries}
        self._nodes = {node.name: node for node in seen.state.nodes}
        self._prices = seen.prices
        self.done = Applied()

    async def run(self, plan: Plan) -> Applied:
        """Everything; what touches the same model or node in the plan's order.

        Raises StalePlanError on a conflict or when the plan is too old.
        """
        actions = (action for action in plan.actions if not isinstance(action, Refuse | Wait))
        await Turns().run((self._touched(one), partial(self._guarded, one)) for one in actions)
        return self.done

    def _touched(self, action: Action) -> set[str]:
        """Keys of models and names of nodes that the action is about."""
        match action:
            case Prepare() | Reserve():
                return {action.model, *(seat.place.node for seat in seats_of(action))}
            case Refuse() | Wait():
                return {action.model}
            case _:
                entry = self._entries.get(action.runner)
                about = {entry.model_key, entry.node} if entry is not None else set()
                return about | ({action.newcomer} if isinstance(action, Drain) else set())

    def _check(self) -> None:
        if self._hands.clock() - self._state.now > PLAN_LIFETIME_S:
            raise StalePlanError("the plan is older than 5 s")
        if not self._hands.leads():
            raise StalePlanError("this process leads no more")

    async def _guarded(self, action: Action) -> None:
        """One action; what the API server will not take of one runner costs the others nothing."""
        self._check()
        try:
            await self._apply(action)
        except ApiError as err:
            if err.conflict or err.status == 429 or err.status >= 500:
                raise StalePlanError(str(err)) from err
            log.warning("%s was refused and is left out: %s", type(action).__name__, err)

    async def _apply(self, action: Action) -> None:
        match action:
            case Prepare():
                await self._create(action)
            case Reserve(runner=""):
                await self._create(action)
            case Reserve():
                await self._reserve(action)
            case StartPod(runner=uid):
                await self._start_pod(uid)
            case Drain():
                await self._drain(action)
            case Spare(runner=uid):
                await self._spare(uid)
            case Stop():
                await self._stop(action)
            case Refuse() | Wait():
                pass
            case _:
                assert_never(action)

    async def _create(self, action: Prepare | Reserve) -> None:
        model = self._models.get(action.model)
        priced = self._prices.get(action.model)
        if model is None or priced is None:
            raise StalePlanError(f"model {action.model} is gone")
        for rank in range(1 + len(action.seats)):
            if not await self._create_one(action, model, priced, rank):
                return
        self.done.placed += 1
        where = " ".join((action.place.node, *action.place.devices))
        where += "".join(f", {seat.place.node}" for seat in action.seats)
        name = name_of(action, model)
        self._hands.teller.tell(model, Happening.PLACED, f"{name} on {where}: {action.need.text}")

    async def _create_one(
        self, action: Prepare | Reserve, model: Model, priced: Priced, rank: int
    ) -> bool:
        """One Runner, of a group that of one rank. False where the API server will not take it."""
        spec = runner_spec(
            action, model, priced, nodes=self._nodes, stamp=self._hands.stamp, rank=rank
        )
        name = member_name(name_of(action, model), rank)
        body = runner_body(model, spec, name=name)
        try:
            answer = await self._hands.kube.create(RUNNERS, body, model.metadata.namespace)
        except ApiError as err:
            if err.conflict:
                await self._meet(name, model)
            self._refused(action.model, spec.node_name, name, err)
            return False
        self._hands.store.runners.put(answer)
        return True

    async def _meet(self, name: str, model: Model) -> None:
        """A Runner of this name exists: see it, and plan again. One that cannot be read is told."""
        namespace = model.metadata.namespace
        self._hands.store.runners.put(await self._hands.kube.get(RUNNERS, name, namespace))
        if self._hands.store.runners.get(f"{namespace}/{name}") is not None:
            raise StalePlanError(f"runner {namespace}/{name} exists already")

    def _refused(self, key: str, node: str, name: str, err: ApiError) -> None:
        """What the API server will not take is told as the runner's failure."""
        if err.status >= 500 or err.status == 429:
            raise StalePlanError(f"{name}: {err}") from err
        reason = Reason.UNSUPPORTED if err.status in (409, 422) else Reason.ADMISSION_ERROR
        log.warning("the API server refused %s: %s", name, err)
        outcome = Outcome(reason, err.message[:900])
        self.done.failures.append(Failure(key, f"{name}@{self._state.now}", node, outcome))

    async def _reserve(self, action: Reserve) -> None:
        entry, runner = self._runner(action.runner)
        priced = self._prices.get(action.model)
        if priced is None:
            raise StalePlanError(f"model {action.model} is gone")
        for rank, seat in enumerate(seats_of(action)):
            member = runner if rank == 0 else self._member(runner, rank)
            await self._reserve_one(action, priced, seat, member)
        self.done.placed += 1
        log.info("%s reserved on %s", runner.key, entry.node)

    def _member(self, head: Runner, rank: int) -> Runner:
        found = self._hands.store.runners.get(member_name(head.key, rank))
        if found is None:
            raise StalePlanError(f"member {rank} of {head.key} is gone")
        return found

    async def _reserve_one(
        self, action: Reserve, priced: Priced, seat: Seat, runner: Runner
    ) -> None:
        variant = variant_of(priced.variants, action.need.variant)
        disk = runner.spec.claim.disk
        claim = wire_claim(seat, variant, self._nodes, need=action.need, disk=disk)
        rank = runner.spec.group.rank if runner.spec.group else 0
        node = self._nodes.get(seat.place.node)
        await self._write(
            runner,
            stage="Reserved",
            passId=self._hands.stamp.pass_id,
            claim=claim.wire(),
            settingsHash=priced.settings_hash,
            variant=variant.name,
            image=variant.image,
            command=variant.words(rank, 1 + len(action.seats), cards_of(seat, self._nodes)),
            env=[one.wire() for one in environment_of(variant, priced, node)],
        )

    async def _start_pod(self, uid: str) -> None:
        _, runner = self._runner(uid)
        body = runner_pod(runner, self._hands.pod_settings)
        try:
            answer = await self._hands.kube.create(PODS, body, runner.metadata.namespace)
        except ApiError as err:
            if err.conflict:
                if self._own_pod(runner):
                    return
                raise StalePlanError(f"a pod {runner.key} exists already") from err
            entry = self._entries[uid]
            self._refused(entry.model_key, entry.node, uid, err)
            await self._stop(Stop(uid, Reason.ADMISSION_ERROR))
            return
        self._hands.store.pods.put(answer)

    def _own_pod(self, runner: Runner) -> bool:
        pod = self._hands.store.pods.get(runner.key)
        return pod is not None and pod.runner_uid == runner.metadata.uid

    async def _drain(self, action: Drain) -> None:
        entry, runner = self._runner(action.runner)
        now = self._hands.clock()
        order = DrainOrder(
            reason=action.reason,
            since=timestamp(now),
            deadline=timestamp(action.deadline_s),
            newcomer=action.newcomer,
        )
        await self._write(runner, drain=order.wire())
        model = self._models.get(entry.model_key)
        if model is not None:
            why = f" for {action.newcomer}" if action.newcomer else ""
            message = f"{runner.metadata.name} on {entry.node}: {action.reason}{why}"
            self._hands.teller.tell(model, Happening.DRAINING, message)

    async def _spare(self, uid: str) -> None:
        entry, runner = self._runner(uid)
        await self._write(runner, drain=None)
        model = self._models.get(entry.model_key)
        if model is not None:
            message = f"{runner.metadata.name} on {entry.node} goes on"
            self._hands.teller.tell(model, Happening.SPARED, message)

    async def _stop(self, action: Stop) -> None:
        """The Runner first: from then on nothing can take it for one that is up."""
        entry = self._entries.get(action.runner)
        if entry is None:
            raise StalePlanError(f"runner {action.runner} is unknown")
        if entry.runner is not None:
            await delete_runner(self._hands.kube, self._hands.store, entry.runner)
        await self._delete_pod(entry, action.grace_s)
        if entry.stage is not Stage.UP or entry.runner is None or entry.runner.spec.drain is None:
            # Nobody's answer needs them any more; beside a head that drains they go after it.
            await self._stop_members(entry, action)
        failure = failure_of(entry, action)
        if failure is not None:
            self.done.failures.append(failure)
        self.done.stopped += 1
        self.done.evicted += action.reason is Reason.MAKE_ROOM
        self._tell_stop(entry, action)

    async def _stop_members(self, head: Entry, action: Stop) -> None:
        if head.runner is None or head.runner.spec.group is None:
            return
        group, space = head.runner.spec.group, head.runner.metadata.namespace
        for entry in self._entries.values():
            runner = entry.runner
            if runner is None or not runner.is_part or runner.metadata.namespace != space:
                continue
            if runner.spec.group is not None and runner.spec.group.head == group.head:
                await delete_runner(self._hands.kube, self._hands.store, runner)
                await self._delete_pod(entry, action.grace_s)

    async def _delete_pod(self, entry: Entry, grace_s: float | None) -> None:
        pod = entry.pod
        if pod is None or (pod.deleting and grace_s is None):
            return
        whole = None if grace_s is None else max(0, round(grace_s))
        await delete_pod(self._hands.kube, self._hands.store, pod, grace_s=whole)

    def _tell_stop(self, entry: Entry, action: Stop) -> None:
        model = self._models.get(entry.model_key)
        if model is None:
            return
        name = entry.runner.metadata.name if entry.runner else entry.uid
        what = Happening.UNLOADED
        message = f"{name} on {entry.node}: {action.reason}"
        if entry.outcome is not None:
            fetching = entry.runner is not None and entry.runner.spec.stage == "Preparing"
            what = Happening.FETCH_FAILED if fetching else Happening.CRASHED
            message = f"{name} on {entry.node}: {entry.outcome.reason}: {entry.outcome.message}"
        elif action.reason is Reason.MAKE_ROOM:
            what = Happening.EVICTED
            newcomer = entry.runner.spec.drain if entry.runner else None
            message += f" for {newcomer.newcomer}" if newcomer and newcomer.newcomer else ""
        self._hands.teller.tell(model, what, message)

    def _runner(self, uid: str) -> tuple[Entry, Runner]:
        entry = self._entries.get(uid)
        if entry is None or entry.runner is None:
            raise StalePlanError(f"runner {uid} is gone")
        return entry, entry.runner

    async def _write(self, runner: Runner, **changes: Any) -> None:
        await write_runner(self._hands, runner, **changes)


async def write_runner(hands: Hands, runner: Runner, **changes: Any) -> None:
    """Apply the fields of a Runner's spec that change in its life; None takes a field away.

    Server-side apply states every one of them each time: what it leaves out, it gives up.
    """
    spec = runner.spec.wire()
    names = ("stage", "passId", "claim", "settingsHash", "image", "command", "drain")
    wanted = {name: spec[name] for name in names if name in spec} | changes
    body: Object = {
        "metadata": {"uid": runner.metadata.uid},
        "spec": {name: value for name, value in wanted.items() if value is not None}
        | {"epoch": hands.stamp.epoch},
    }
    answer = await hands.kube.apply(
        RUNNERS,
        runner.metadata.name,
        body,
        manager=MANAGER,
        namespace=runner.metadata.namespace,
    )
    hands.store.runners.put(answer)
