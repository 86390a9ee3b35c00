"""Which entries does the ledger have, and how far is each? Runners and Berth's pods, by uid."""

from collections.abc import Iterable
from dataclasses import dataclass

from berth.api.meta import ANNOTATION_KILL, moment_or_none
from berth.api.runner import Claim as WireClaim
from berth.api.runner import DrainOrder, MemoryUse
from berth.api.runner import Runner as RunnerObject
from berth.controller.outcomes import (
    Outcome,
    failed_fetch,
    judge_pod,
    judge_waiting,
    unscheduled,
)
from berth.controller.sightings import Sightings
from berth.controller.store import Store
from berth.controller.views import NodeView, PodView
from berth.planner.state import HOST, Claim, Drain, Runner, Stage
from berth.reasons import Reason
from berth.units import Bytes

UNSCHEDULED_S = 30.0
HELD_UP_S = 30.0
"""A container that cannot be started keeps other loads from its place; after this long it gives way."""
LOST_S = 60.0


@dataclass(frozen=True)
class Entry:
    """One ledger entry as objects: a Runner, its pod, or both; and why it failed, if it did."""

    uid: str
    runner: RunnerObject | None
    pod: PodView | None
    stage: Stage
    outcome: Outcome | None = None

    @property
    def model_key(self) -> str:
        """``namespace/name`` of its Model; of a pod alone as far as its label tells."""
        if self.runner is not None:
            return self.runner.model_key
        assert self.pod is not None
        return f"{self.pod.namespace}/{self.pod.model}"

    @property
    def node(self) -> str:
        if self.runner is not None:
            return self.runner.spec.node_name
        assert self.pod is not None
        return self.pod.node


def entries(store: Store, sightings: Sightings, now: float) -> list[Entry]:
    """The union of Runners and runner pods by Runner uid, in the order of their names."""
    pods = {pod.runner_uid: pod for pod in store.pods if pod.is_runner}
    found = []
    for runner in store.runners:
        uid = runner.metadata.uid
        found.append(_entry(uid, runner, pods.pop(uid, None), store, sightings, now))
    for uid, pod in pods.items():
        found.append(Entry(uid, None, pod, Stage.STOPPING))
    return sorted(found, key=lambda entry: (entry.model_key, entry.uid))


def _entry(
    uid: str,
    runner: RunnerObject,
    pod: PodView | None,
    store: Store,
    sightings: Sightings,
    now: float,
) -> Entry:
    outcome = _outcome(uid, runner, pod, sightings, now)
    stage = _stage(runner, pod, outcome)
    if stage is not Stage.FAILED and _node_lost(
        runner, store.nodes.get(runner.spec.node_name), sightings, now
    ):
        stage = Stage.LOST
    return Entry(uid, runner, pod, stage, outcome)


def _outcome(
    uid: str, runner: RunnerObject, pod: PodView | None, sightings: Sightings, now: float
) -> Outcome | None:
    """Why the runner failed; None while it has not."""
    if pod is None:
        return _outcome_without_pod(runner)
    if pod.deleting:
        # Somebody is ending it: how it ends is not its own doing.
        return None
    ended = judge_pod(pod)
    if ended is not None:
        return ended
    since = sightings.since("pod-scheduled", pod.uid, pod.scheduled, now)
    if not pod.scheduled and now - since >= UNSCHEDULED_S:
        return unscheduled(pod, after_s=UNSCHEDULED_S)
    held_up = judge_waiting(pod)
    if held_up is None:
        return None
    since = sightings.since("pod-held-up", pod.uid, held_up.reason, now)
    return held_up if now - since >= HELD_UP_S else None


def _outcome_without_pod(runner: RunnerObject) -> Outcome | None:
    if runner.status.pod:
        # It had a pod, and nothing of ours deletes a pod and leaves its Runner.
        return Outcome(Reason.KILLED, f"pod {runner.status.pod} was deleted")
    fetch = runner.status.agent.fetch if runner.status.agent else None
    if fetch is not None and fetch.state == "Failed" and runner.spec.stage == "Preparing":
        return failed_fetch(fetch.reason, fetch.message)
    return None


def _stage(runner: RunnerObject, pod: PodView | None, outcome: Outcome | None) -> Stage:
    if runner.metadata.deletion_timestamp or (pod is not None and pod.deleting):
        return Stage.STOPPING
    if outcome is not None:
        return Stage.FAILED
    if pod is not None:
        return Stage.UP if pod.ready or runner.status.up_since else Stage.STARTING
    return Stage.RESERVED if runner.spec.stage == "Reserved" else Stage.PREPARING


def _node_lost(
    runner: RunnerObject, node: NodeView | None, sightings: Sightings, now: float
) -> bool:
    ready = node is not None and node.ready
    since = sightings.since("runner-node-ready", runner.metadata.uid, ready, now)
    return not ready and now - since >= LOST_S


def observe_runners(found: Iterable[Entry], sightings: Sightings, now: float) -> tuple[Runner, ...]:
    """The ledger in the planner's words."""
    return tuple(
        _from_runner(entry, entry.runner, sightings, now)
        if entry.runner is not None
        else _from_pod(entry)
        for entry in found
    )


def _from_pod(entry: Entry) -> Runner:
    """A pod whose Runner is gone still holds its bytes."""
    pod = entry.pod
    assert pod is not None
    return Runner(
        uid=entry.uid,
        name=pod.runner,
        model=entry.model_key,
        node=entry.node,
        claim=claim_of(pod.claim) if pod.claim else Claim(),
        stage=Stage.STOPPING,
        pod_exists=True,
        pod_deleting=pod.deleting,
    )


def _from_runner(entry: Entry, runner: RunnerObject, sightings: Sightings, now: float) -> Runner:
    spec, status = runner.spec, runner.status
    agent = status.agent
    outcome, pod = entry.outcome, entry.pod
    refused = agent.admission if agent and agent.admission else None
    is_refused = (
        refused is not None and refused.state == "Refused" and refused.pass_id == spec.pass_id
    )
    return Runner(
        uid=entry.uid,
        name=runner.metadata.name,
        model=entry.model_key,
        node=spec.node_name,
        claim=claim_of(spec.claim),
        stage=entry.stage,
        ordinal=spec.ordinal,
        attempt=spec.attempt,
        created=moment_or_none(runner.metadata.creation_timestamp) or now,
        # Its status is written at the end of the pass that first sees it up.
        up_since=moment_or_none(status.up_since) or (now if entry.stage is Stage.UP else None),
        busy=agent.health.busy if agent and agent.health else 0,
        quiet_since=_quiet_since(runner, sightings, now),
        measured=_measured(agent.memory) if agent and agent.memory and pod else (),
        settings_hash=spec.settings_hash,
        drain=_drain(spec.drain),
        fetched=is_fetched(runner),
        admitted_until=_admitted_until(runner, sightings, now),
        admission_refused=_reason(refused.reason) if is_refused and refused else None,
        admission_message=(refused.message or "") if is_refused and refused else "",
        exit_reason=outcome.reason if outcome else None,
        exit_message=outcome.message if outcome else "",
        exit_at=sightings.since("exit", entry.uid, True, now) if outcome else None,
        pod_exists=pod is not None,
        pod_deleting=pod.deleting if pod else False,
        health=agent.health.state if agent and agent.health else "Unknown",
        load_deadline=_load_deadline(entry, runner, sightings, now),
        kill=bool(runner.metadata.annotations.get(ANNOTATION_KILL)),
        epoch=spec.epoch,
        reserved_at=sightings.since("stage", entry.uid, spec.stage, now),
        foreign_deletion=pod is not None and pod.deleting,
    )


def claim_of(claim: WireClaim) -> Claim:
    return Claim(
        host=Bytes(claim.host),
        devices=tuple((device.device, Bytes(device.memory)) for device in claim.devices),
    )


def is_fetched(runner: RunnerObject) -> bool:
    """Its files are on the node: verified by the agent, or mounted from where they are."""
    if runner.spec.mount is not None:
        return True
    fetch = runner.status.agent.fetch if runner.status.agent else None
    return fetch is not None and fetch.state == "Verified"


def _admitted_until(runner: RunnerObject, sightings: Sightings, now: float) -> float | None:
    """When the admission of this pass ends, counted from when it was first seen here."""
    admission = runner.status.agent.admission if runner.status.agent else None
    if admission is None or admission.state != "Admitted":
        return None
    if admission.pass_id != runner.spec.pass_id:
        return None
    seen = sightings.since("admission", runner.metadata.uid, (admission.pass_id, admission.at), now)
    at, until = moment_or_none(admission.at), moment_or_none(admission.expires_at)
    return seen + max(0.0, until - at) if at is not None and until is not None else None


def _quiet_since(runner: RunnerObject, sightings: Sightings, now: float) -> float | None:
    """Since when the agent is known to have seen nothing in hand under this very drain order."""
    quiet = runner.status.agent.quiet if runner.status.agent else None
    order = runner.spec.drain
    if quiet is None or order is None or quiet.drain_seen != order.since:
        return None
    return sightings.since("quiet", runner.metadata.uid, (quiet.since, quiet.drain_seen), now)


def _load_deadline(
    entry: Entry, runner: RunnerObject, sightings: Sightings, now: float
) -> float | None:
    """When a load has taken too long; memory that is still growing is progress and extends it."""
    if entry.stage is not Stage.STARTING or entry.pod is None:
        return None
    started = sightings.since("load-started", entry.uid, entry.pod.uid, now)
    memory = runner.status.agent.memory if runner.status.agent else None
    shown = memory.model_dump_json() if memory else ""
    progressed = sightings.since("load-progress", entry.uid, shown, now)
    return max(started, progressed) + runner.spec.load_timeout_seconds


def _measured(memory: MemoryUse) -> tuple[tuple[str, Bytes], ...]:
    devices = tuple((use.device, Bytes(use.used)) for use in memory.devices)
    host = ((HOST, Bytes(memory.host)),) if memory.host is not None else ()
    return host + devices


def _drain(order: DrainOrder | None) -> Drain | None:
    if order is None:
        return None
    since = moment_or_none(order.since) or 0.0
    return Drain(
        reason=_reason(order.reason) or Reason.MAKE_ROOM,
        since=since,
        deadline=moment_or_none(order.deadline) or since,
        newcomer=order.newcomer,
    )


def _reason(text: str | None) -> Reason | None:
    try:
        return Reason(text) if text else None
    except ValueError:
        return None
