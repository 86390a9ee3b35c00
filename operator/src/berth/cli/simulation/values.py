"""What is a runner in a simulation, what does it hold, and what is counted?"""

from dataclasses import dataclass, field, replace

from berth.planner.arithmetic import rooms
from berth.planner.state import HOST, Node, Runner, State
from berth.units import Bytes


@dataclass(frozen=True)
class Happening:
    """Something that a report tells. ``what`` is one word."""

    at: float
    what: str
    model: str
    text: str


@dataclass
class Tally:
    """What came of one model's requests."""

    requests: int = 0
    served: int = 0
    refused: int = 0
    gave_up: int = 0
    loads: int = 0
    evicted: int = 0
    unloaded: int = 0
    waits: list[float] = field(default_factory=list)
    """Seconds from a request's coming until a runner had it, of those that were served."""


@dataclass
class Seat:
    """A runner as it is; ``seen`` is what the planner is told of it."""

    seen: Runner
    done_at: float | None = None
    """When the step under way (fetch, load, stop) ends."""
    answers: list[float] = field(default_factory=list)
    """When each request in hand ends."""
    probe_at: float | None = None


def held(seen: Runner) -> tuple[tuple[str, Bytes], ...]:
    """What a runner takes: what it claims, or what it was measured to hold if that is more."""
    known = dict(seen.measured)
    claimed = {HOST: seen.claim.host}
    for uuid, size in seen.claim.devices:
        claimed[uuid] = Bytes(claimed.get(uuid, 0) + size)
    return tuple((place, Bytes(max(size, known.get(place, 0)))) for place, size in claimed.items())


def emptied(node: Node, state: State) -> Node:
    """The node without what our runners hold: what others hold stays."""
    found = rooms(node, [runner for runner in state.runners if runner.node == node.name])
    devices = tuple(
        device
        if device.uuid not in found or device.used is None
        else replace(device, used=found[device.uuid].foreign)
        for device in node.devices
    )
    others = found[HOST].foreign
    return replace(node, devices=devices, available=Bytes(node.capacity - others), warm=Bytes(0))
