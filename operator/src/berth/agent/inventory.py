"""What does the node's NodeInventory say, and when is it written?"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from berth.agent.gpus import Gpu
from berth.agent.host import Disk
from berth.agent.live import Sample
from berth.agent.quanta import FREE_EVERY_S, has_moved
from berth.agent.shelf import Blob
from berth.api.inventory import Device, HostMemory, InspectedPath, NodeInventoryStatus, StoredFile
from berth.api.meta import Condition
from berth.reasons import ConditionType, Reason
from berth.units import GiB

Conditions = Sequence[Condition]
FILE_LIMIT = 512
"""More files than this are told by digest and count alone."""
_DISK_STEP = 1 * GiB
_DISK_SHARE = 0.02


@dataclass(frozen=True)
class Findings:
    """Everything that was found on the node at one moment."""

    sample: Sample
    disk: Disk
    cpus: int
    files: Sequence[Blob]
    paths: Sequence[InspectedPath] = ()
    epoch: int = 0
    started: str = ""
    now: str = ""
    guard_kills: int = 0
    claims_used: int = 0
    warm: int = 0


def inventory_status(found: Findings, before: Conditions = ()) -> NodeInventoryStatus:
    """The status as it would be written now; ``before`` says since when a condition has been so."""
    files = sorted(found.files, key=lambda blob: blob.sha256)
    listed = files if len(files) <= FILE_LIMIT else []
    return NodeInventoryStatus(
        conditions=[_devices_read(found, before)],
        epoch=found.epoch,
        host=HostMemory(
            total=found.sample.memory.total,
            available=found.sample.memory.available,
            warm=found.warm,
            claims_used=found.claims_used,
        ),
        cpus=found.cpus,
        devices=[_device(gpu) for gpu in found.sample.gpus.gpus][:64],
        driver=found.sample.gpus.driver[:64],
        disk_total=found.disk.total,
        disk_free=found.disk.free,
        files=[StoredFile(sha256=blob.sha256, size=blob.size) for blob in listed],
        file_count=len(files),
        files_digest=_digest(files),
        paths=list(found.paths)[:32],
        started=found.started,
        guard_kills=found.guard_kills,
    )


def _devices_read(found: Findings, before: Conditions) -> Condition:
    gpus, problem = found.sample.gpus.gpus, found.sample.gpus.problem
    fresh = Condition(
        type=ConditionType.DEVICES_READ,
        status="False" if problem else "True",
        reason=Reason.DRIVER_FAULT if problem else Reason.DEVICES_SEEN,
        message=problem[:1024] or f"{len(gpus)} devices",
        last_transition_time=found.now,
    )
    old = next((c for c in before if c.type == fresh.type and c.status == fresh.status), None)
    if old is None:
        return fresh
    return fresh.model_copy(update={"last_transition_time": old.last_transition_time})


def is_worth_writing(
    before: NodeInventoryStatus | None,
    now: NodeInventoryStatus,
    *,
    passed_s: float,
    hurry: bool = False,
) -> bool:
    """Whether the inventory differs enough from the one written ``passed_s`` seconds ago.

    1. Devices, files, paths, epochs and the like: at once. 2. Free memory of host or device on a
    quantum, and disk on max(1 GiB, 2 %), after 10 s, or at once in a ``hurry``: a runner came or
    went, and what it held or freed decides on the next.
    """
    if before is None:
        return True
    if _without_figures(before) != _without_figures(now):
        return True
    if not hurry and passed_s < FREE_EVERY_S:
        return False
    return memory_has_moved(before, now) or _disk_has_moved(before.disk_free, now.disk_free)


def memory_has_moved(before: NodeInventoryStatus, now: NodeInventoryStatus) -> bool:
    """Free memory of the host or of a device moved by a quantum."""
    used = {device.uuid: device.used for device in before.devices}
    return (
        has_moved(before.host.available, now.host.available)
        or has_moved(before.host.warm, now.host.warm)
        or has_moved(before.host.claims_used, now.host.claims_used)
        or any(has_moved(used.get(device.uuid), device.used) for device in now.devices)
    )


def _disk_has_moved(before: int, now: int) -> bool:
    return abs(now - before) >= max(_DISK_STEP, int(before * _DISK_SHARE))


def _without_figures(status: NodeInventoryStatus) -> NodeInventoryStatus:
    """Without what is written by quanta only."""
    host = status.host.model_copy(update={"available": 0, "warm": 0, "claims_used": 0})
    devices = [device.model_copy(update={"used": 0}) for device in status.devices]
    return status.model_copy(update={"host": host, "devices": devices, "disk_free": 0})


def _device(gpu: Gpu) -> Device:
    return Device(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name[:253],
        memory=0 if gpu.unified else gpu.total,
        # A device that cannot tell just now is shown full: nothing is placed on a guess.
        used=0 if gpu.unified else (gpu.total if gpu.used is None else gpu.used),
        compute_capability=gpu.compute_capability[:16],
        unified=gpu.unified,
    )


def _digest(files: Sequence[Blob]) -> str:
    text = "\n".join(blob.sha256 for blob in files)
    return hashlib.sha256(text.encode()).hexdigest()
