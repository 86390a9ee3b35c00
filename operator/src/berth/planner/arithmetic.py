"""How many bytes are free on a device or a host? One function, used by controller and agent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from berth.planner.state import HOST, Device, Node, Policy, Runner, Stage
from berth.units import Bytes, MiB

SMALLEST_GPU_RESERVE = Bytes(512 * MiB)
RESERVED_SHARE = 16
"""A sixteenth of each GPU stays free, and never less than SMALLEST_GPU_RESERVE."""


@dataclass(frozen=True)
class Entry:
    """What one ledger entry has on one place. ``measured`` is ``None`` where it cannot be told."""

    claim: Bytes
    measured: Bytes | None = None
    up: bool = False
    has_pod: bool = True


@dataclass(frozen=True)
class Room:
    """One place in numbers. ``free`` is negative where the place is over-committed."""

    capacity: Bytes
    reserve: Bytes
    claims: Bytes
    foreign: Bytes
    """Bytes in use by others beyond what the claims already set aside."""
    held: Bytes
    """Σ over the ledger of the larger of claim and measurement."""
    free: Bytes
    unsure: bool = False
    """A runner of ours could not be measured: foreign use may be larger than it looks."""

    @property
    def emptied(self) -> Bytes:
        """What a runner could get at most, once nobody else is there."""
        return Bytes(self.capacity - self.reserve - self.claims)


def free_on(
    *,
    capacity: Bytes,
    reserve: Bytes,
    used_live: Bytes | None,
    entries: Iterable[Entry],
    claims: Bytes = Bytes(0),
    claims_used: Bytes = Bytes(0),
) -> Room:
    """Room on one place, all figures in bytes (design §4, "Arithmetic of a place").

    1. An own runner counts as the larger of its claim and its measurement.
    2. One that cannot be measured counts as measured 0 until it is up and as its claim from then
       on; the place is marked unsure.
    3. Foreign use is what is used now less what own pods were measured to hold, never below 0.
       A runner without a pod holds nothing yet, whatever an old measurement says.
    4. Claims for programs outside Berth are set aside whole; of foreign use only what exceeds the
       claims already seen in use is taken off besides.
    5. Where live use cannot be told, foreign use counts as 0 and the place is marked unsure.
    """
    held = measured_now = 0
    unsure = used_live is None
    for entry in entries:
        seen = entry.measured
        if seen is None and entry.has_pod:
            unsure = True
            seen = entry.claim if entry.up else Bytes(0)
        held += max(entry.claim, seen or 0)
        measured_now += (seen or 0) if entry.has_pod else 0
    in_use_by_others = max(0, (used_live or 0) - measured_now)
    foreign = max(0, in_use_by_others - min(claims, claims_used))
    free = capacity - reserve - claims - foreign - held
    return Room(capacity, reserve, claims, Bytes(foreign), Bytes(held), Bytes(free), unsure=unsure)


def is_unified(device: Device) -> bool:
    """Whether the device's memory is the host's: it says so, or it gives no figures at all."""
    return device.unified or (device.used is None and device.capacity == 0)


def gpu_reserve(device: Device, policy: Policy) -> Bytes:
    """Bytes of a GPU that stay free: the policy's, else the larger of 512 MiB and a sixteenth."""
    if policy.gpu_reserve is not None:
        return policy.gpu_reserve
    return Bytes(max(SMALLEST_GPU_RESERVE, device.capacity // RESERVED_SHARE))


def host_reserve(node: Node) -> Bytes:
    """Bytes of host memory that stay free; on a board with unified memory floor and margin."""
    policy = node.policy
    if any(is_unified(device) for device in node.devices):
        return Bytes(policy.unified_floor + policy.unified_margin)
    return policy.host_reserve


def host_room(node: Node, runners: Iterable[Runner]) -> Room:
    """Room in the host memory of ``node``; unified devices are part of it.

    Kept file pages (``warm``) look available but are read again: they count as used.
    """
    shared = tuple(device.uuid for device in node.devices if is_unified(device))
    return free_on(
        capacity=node.capacity,
        reserve=host_reserve(node),
        used_live=Bytes(max(0, node.capacity - node.available + node.warm)),
        entries=[
            *(entry_of(runner, HOST, *shared) for runner in runners),
            *(Entry(copy.claim, copy.size if copy.ready else Bytes(0)) for copy in node.copies),
        ],
        claims=node.policy.claims,
        claims_used=node.policy.claims_used,
    )


def device_room(node: Node, device: Device, runners: Iterable[Runner]) -> Room:
    """Room on one GPU with memory of its own."""
    return free_on(
        capacity=device.capacity,
        reserve=gpu_reserve(device, node.policy),
        used_live=device.used,
        entries=[
            entry_of(runner, device.uuid)
            for runner in runners
            if any(uuid == device.uuid for uuid, _ in runner.claim.devices)
        ],
    )


def rooms(node: Node, runners: Iterable[Runner]) -> Mapping[str, Room]:
    """Room by HOST and by the UUID of every device with memory of its own."""
    entries = tuple(runner for runner in runners if runner.stage is not Stage.PREPARING)
    found = {HOST: host_room(node, entries)}
    for device in node.devices:
        if not is_unified(device):
            found[device.uuid] = device_room(node, device, entries)
    return found


def entry_of(runner: Runner, *places: str) -> Entry:
    """What ``runner`` has on ``places`` (HOST, UUIDs) taken together, as one entry."""
    seen = [size for place, size in runner.measured if place in places]
    has_pod = runner.pod_exists or runner.stage in _STAGES_WITH_POD
    ended = runner.stage is Stage.FAILED
    return Entry(
        claim=Bytes(sum(runner.claim.on(place) for place in places)),
        measured=Bytes(sum(seen)) if seen else None,
        up=runner.up_since is not None or runner.stage is Stage.UP,
        has_pod=has_pod and not ended,
    )


_STAGES_WITH_POD = frozenset({Stage.STARTING, Stage.UP, Stage.STOPPING})
