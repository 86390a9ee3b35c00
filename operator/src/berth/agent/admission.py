"""May this load start now? Pure: decided from the node's live memory and its part of the ledger.

The agent is the last to say no. The planner placed the runner on what it knew seconds ago; here
the memory must really be there (M6, M8, M11).
"""

from collections.abc import Callable
from dataclasses import dataclass

from berth.planner.arithmetic import Room, is_unified, rooms
from berth.planner.state import HOST, Claim, Node, Runner, Stage
from berth.reasons import Reason
from berth.units import Bytes, show_bytes


@dataclass(frozen=True)
class Ground:
    """What a decision stands on. Moments are seconds on the node's wall clock."""

    node: Node
    runners: tuple[Runner, ...]
    """Every ledger entry of this node, the one that asks included."""
    now: float
    epoch: int = 0
    """The highest epoch of a controller seen."""
    away: tuple[tuple[str, str], ...] = ()
    """(place, name) of runners that have gone and whose memory is not seen to be back."""
    strangers: tuple[str, ...] = ()
    """Engines that Berth did not start and no claim of the policy names, each in a few words."""


@dataclass(frozen=True)
class Admit:
    """The load may start. ``need`` and ``have`` are those of its tightest place, in bytes."""

    need: Bytes
    have: Bytes


@dataclass(frozen=True)
class Refusal:
    """The load may not start now, and why."""

    reason: Reason
    message: str
    need: Bytes = Bytes(0)
    have: Bytes = Bytes(0)


Rule = Callable[[Runner, Ground], Refusal | None]


def decide(asks: Runner, ground: Ground) -> Admit | Refusal:
    """Whether ``asks`` may load now. The first rule that refuses is the answer.

    1. Its controller is not one that was deposed (an epoch below the highest one seen).
    2. Every device that it claims is here, and the policy lets runners use it.
    3. What it brings to run here is trusted by the node's policy.
    4. No other load is under way on its devices (on the host, for one without; and for all on a
       board with unified memory).
    5. What a runner held that has gone from there is seen to be back.
    6. On a board with unified memory no engine runs that nobody has claimed memory for: it may
       grow at any time, and what it will take is in no ledger.
    7. Its whole claim is free on each device, and on the host, in live figures, beside every
       runner here and every one that was reserved here before it.
    """
    for rule in RULES:
        refusal = rule(asks, ground)
        if refusal is not None:
            return refusal
    return _tightest(asks, ground)


def refuse_stale_epoch(asks: Runner, ground: Ground) -> Refusal | None:
    if asks.epoch >= ground.epoch:
        return None
    return Refusal(
        Reason.EPOCH,
        f"{asks.name} was reserved by controller epoch {asks.epoch}; "
        f"{ground.node.name} has seen epoch {ground.epoch}",
    )


def refuse_missing_device(asks: Runner, ground: Ground) -> Refusal | None:
    present = {device.uuid: device for device in ground.node.devices}
    allowed = ground.node.policy.devices
    for uuid, _ in asks.claim.devices:
        device = present.get(uuid)
        if device is None:
            seen = ", ".join(sorted(present)) or "none"
            return Refusal(
                Reason.NO_DEVICE, f"{ground.node.name} has no device {uuid}; it has {seen}"
            )
        if allowed and not allowed & {uuid, str(device.index)}:
            return Refusal(
                Reason.NO_DEVICE,
                f"Residency {ground.node.policy.name} does not let runners use {uuid}",
            )
    return None


def refuse_untrusted(asks: Runner, ground: Ground) -> Refusal | None:
    lacking = sorted(asks.runs_code - ground.node.policy.trust)
    if not lacking:
        return None
    who = ground.node.policy.name or "none"
    return Refusal(
        Reason.UNTRUSTED_CODE,
        f"{asks.name} has {', '.join(lacking)}; the Residency of {ground.node.name} ({who}) does not trust that",
    )


def refuse_other_load(asks: Runner, ground: Ground) -> Refusal | None:
    own = places_of(asks.claim, ground.node)
    for other in ground.runners:
        if other.uid == asks.uid or not is_loading(other, ground.now):
            continue
        shared = own & places_of(other.claim, ground.node)
        if shared:
            place = _show(min(shared), ground.node)
            return Refusal(
                Reason.LOAD_IN_PROGRESS, f"{other.name} is loading on {place}; one load at a time"
            )
    return None


def refuse_unsettled(asks: Runner, ground: Ground) -> Refusal | None:
    own = places_of(asks.claim, ground.node)
    for place, name in ground.away:
        if place in own:
            return Refusal(
                Reason.SETTLING,
                f"{name} has gone from {_show(place, ground.node)}; "
                "what it held is not seen to be back yet",
            )
    return None


def refuse_strangers(asks: Runner, ground: Ground) -> Refusal | None:
    if not ground.strangers or not any(is_unified(device) for device in ground.node.devices):
        return None
    names = ", ".join(ground.strangers[:4])
    return Refusal(
        Reason.FOREIGN_ENGINE,
        f"{asks.name} shares memory on {ground.node.name} with {names}; "
        "stop it, or set memory aside for it in the Residency's claims",
    )


def refuse_lack(asks: Runner, ground: Ground) -> Refusal | None:
    for place, need, room in _demands(asks, ground):
        if need > max(0, room.free):
            reason = Reason.HOST_MEMORY if place == HOST else Reason.MEMORY
            message = f"{asks.name} needs {show_bytes(need)} of {_show(place, ground.node)}; "
            return Refusal(reason, message + _terms(room), need=need, have=_have(room))
    return None


RULES: tuple[Rule, ...] = (
    refuse_stale_epoch,
    refuse_missing_device,
    refuse_untrusted,
    refuse_other_load,
    refuse_unsettled,
    refuse_strangers,
    refuse_lack,
)


def is_loading(runner: Runner, now: float) -> bool:
    """Admitted and not yet up, failed or expired: the lock of a place is derived, never stored."""
    if runner.stage is Stage.STARTING:
        return True
    admitted = runner.admitted_until is not None and runner.admitted_until > now
    return runner.stage is Stage.RESERVED and admitted


def places_of(claim: Claim, node: Node) -> frozenset[str]:
    """Where a load with this claim must be alone. Host memory is claimed beside other loads: each decision
    counts the one before."""
    unified = {device.uuid for device in node.devices if is_unified(device)}
    if unified or not claim.devices:
        return frozenset({HOST})
    return frozenset(uuid for uuid, _ in claim.devices)


def is_before(other: Runner, asks: Runner, now: float) -> bool:
    """Whether the other's claim stands before ours: it has been let in, or was reserved earlier.

    Reservations made by two controllers at once cannot all be met: the eldest is.
    """
    if other.stage is not Stage.RESERVED or is_loading(other, now):
        return True
    return (other.created, other.uid) < (asks.created, asks.uid)


def _demands(asks: Runner, ground: Ground) -> list[tuple[str, Bytes, Room]]:
    """(place, need, room without it) for every place that it claims, devices first."""
    others = [
        other
        for other in ground.runners
        if other.uid != asks.uid and is_before(other, asks, ground.now)
    ]
    found = rooms(ground.node, others)
    needs: dict[str, int] = {}
    for uuid, size in asks.claim.devices:
        place = uuid if uuid in found else HOST
        needs[place] = needs.get(place, 0) + size
    needs[HOST] = needs.get(HOST, 0) + asks.claim.host
    # A place that it claims nothing of, however over-committed, is none of its business.
    wanted = {place: need for place, need in needs.items() if need > 0} or {HOST: 0}
    return [(place, Bytes(need), found[place]) for place, need in wanted.items()]


def _tightest(asks: Runner, ground: Ground) -> Admit:
    rows = _demands(asks, ground)
    _, need, room = min(rows, key=lambda row: row[2].free - row[1])
    return Admit(need=need, have=_have(room))


def _have(room: Room) -> Bytes:
    return Bytes(max(0, room.free))


def _terms(room: Room) -> str:
    """Every term of the arithmetic, so that nobody has to guess which one was too large."""
    terms = (
        (room.reserve, "kept free"),
        (room.claims, "set aside by policy"),
        (room.foreign, "used by others"),
        (room.held, "held by runners"),
    )
    taken = "".join(f" - {show_bytes(size)} {what}" for size, what in terms if size)
    doubt = " (some of it could not be measured)" if room.unsure else ""
    return f"free: {show_bytes(room.capacity)}{taken} = {show_bytes(room.free)}{doubt}"


def _show(place: str, node: Node) -> str:
    if place == HOST:
        return f"{node.name} host memory"
    index = next((device.index for device in node.devices if device.uuid == place), None)
    return f"{node.name} {place}" if index is None else f"{node.name} cuda:{index}"
