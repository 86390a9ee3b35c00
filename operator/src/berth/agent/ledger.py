"""What stands in this node's part of the ledger? Runners and pods of Berth, by runner uid."""

from collections.abc import Iterable

from berth.agent.gpus import Gpu
from berth.agent.live import Measured, Sample
from berth.agent.pods import Pod
from berth.agent.runners import RunnerWork
from berth.api import runner as api
from berth.api.meta import moment_of
from berth.planner.state import HOST, Claim, Copy, Device, Node, Policy, Runner, Stage
from berth.policy import code_of
from berth.units import Bytes


def node_now(name: str, sample: Sample, policy: Policy, copies: tuple[Copy, ...] = ()) -> Node:
    """The node as admission sees it."""
    return Node(
        name=name,
        capacity=sample.memory.total,
        available=sample.memory.available,
        devices=tuple(device_now(gpu) for gpu in sample.gpus.gpus),
        policy=policy,
        copies=copies,
    )


def device_now(gpu: Gpu) -> Device:
    return Device(
        uuid=gpu.uuid,
        index=gpu.index,
        capacity=gpu.total,
        used=gpu.used,
        unified=gpu.unified,
        name=gpu.name,
    )


def entry_of(work: RunnerWork) -> Runner:
    """One Runner with what this agent knows of it."""
    spec, meta = work.runner.spec, work.runner.metadata
    return Runner(
        uid=work.uid,
        name=meta.name,
        model=f"{meta.namespace}/{spec.model_ref.name}",
        node=spec.node_name,
        claim=claim_of(spec.claim),
        stage=work.stage,
        created=_moment(meta.creation_timestamp),
        up_since=0.0 if work.is_up else None,
        measured=measured_of(work.seen.held) if work.pod is not None else (),
        admitted_until=work.admitted_until,
        pod_exists=work.pod is not None,
        epoch=spec.epoch,
        runs_code=code_of(spec),
    )


def orphan_of(pod: Pod, held: Measured) -> Runner:
    """A pod whose Runner is gone: it holds its bytes until it is gone too."""
    return Runner(
        uid=pod.runner_uid,
        name=pod.name,
        model="",
        node=pod.node,
        claim=claim_of(pod.claim or api.Claim()),
        stage=Stage.STOPPING,
        measured=measured_of(held),
        pod_exists=True,
        pod_deleting=True,
    )


def ledger(
    works: Iterable[RunnerWork], orphans: Iterable[tuple[Pod, Measured]]
) -> tuple[Runner, ...]:
    """Every entry of this node."""
    entries = [entry_of(work) for work in works]
    known = {entry.uid for entry in entries}
    strays = [orphan_of(pod, held) for pod, held in orphans if pod.runner_uid not in known]
    return tuple(entries + strays)


def claim_of(claim: api.Claim) -> Claim:
    return Claim(
        host=Bytes(claim.host),
        devices=tuple((part.device, Bytes(part.memory)) for part in claim.devices),
    )


def measured_of(held: Measured) -> tuple[tuple[str, Bytes], ...]:
    host = () if held.host is None else ((HOST, held.host),)
    return (*host, *held.devices.items())


def _moment(stamp: str) -> float:
    return moment_of(stamp) if stamp else 0.0
