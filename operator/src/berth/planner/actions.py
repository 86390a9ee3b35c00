"""What can the planner decide? A plan is data: it can be printed, compared and replayed."""

from dataclasses import dataclass

from berth.planner.state import Claim, Need
from berth.reasons import Reason, State
from berth.units import Bytes


@dataclass(frozen=True)
class Place:
    """A node and the devices on it; no device: the CPU."""

    node: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seat:
    """The place of one more member of a group, with what it claims there. Rank 1 comes first."""

    place: Place
    claim: Claim


@dataclass(frozen=True)
class Prepare:
    """Create a Runner that fetches its files and has touched nobody."""

    model: str
    place: Place
    claim: Claim
    need: Need
    ordinal: int
    attempt: int
    seats: tuple[Seat, ...] = ()


@dataclass(frozen=True)
class Reserve:
    """Put the claim into the ledger: create the Runner reserved, or move a prepared one on.

    ``runner`` is the uid of the prepared one, empty to create.
    """

    model: str
    place: Place
    claim: Claim
    need: Need
    ordinal: int
    attempt: int
    runner: str = ""
    seats: tuple[Seat, ...] = ()


@dataclass(frozen=True)
class StartPod:
    """The agent admitted this runner in this pass's epoch: create its pod."""

    runner: str


@dataclass(frozen=True)
class Drain:
    """Ask a runner to come to rest. Gateways stop sending; nothing is stopped yet."""

    runner: str
    reason: Reason
    deadline_s: float
    newcomer: str = ""


@dataclass(frozen=True)
class Spare:
    """Take a drain back: its newcomer is gone, or the runner stayed busy beyond its grace."""

    runner: str


@dataclass(frozen=True)
class Stop:
    """Delete the Runner and its pod: the point of no return."""

    runner: str
    reason: Reason
    grace_s: float | None = None


@dataclass(frozen=True)
class PlaceNo:
    """Why one place was refused, in numbers."""

    node: str
    device: str
    reason: Reason
    need: Bytes = Bytes(0)
    have: Bytes = Bytes(0)
    capacity: Bytes = Bytes(0)
    message: str = ""


@dataclass(frozen=True)
class Refuse:
    """No place now. ``final``: no wait will help, clients are answered at once."""

    model: str
    reason: Reason
    message: str
    places: tuple[PlaceNo, ...] = ()
    final: bool = False


@dataclass(frozen=True)
class Wait:
    """It will be planned again: room is coming, a load is under way, a back-off runs."""

    model: str
    reason: Reason
    message: str
    until: float | None = None


def seats_of(action: Prepare | Reserve) -> tuple[Seat, ...]:
    """The places of all members in the order of their ranks; of one runner alone its own."""
    return (Seat(action.place, action.claim), *action.seats)


Action = Prepare | Reserve | StartPod | Drain | Spare | Stop | Refuse | Wait


@dataclass(frozen=True)
class Verdict:
    """What a model's ``Ready`` reason should be after this plan."""

    model: str
    state: State
    reason: Reason
    message: str


@dataclass(frozen=True)
class Plan:
    """Everything one pass decided, in the order in which it is to be applied."""

    actions: tuple[Action, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    wake_at: float | None = None
    """When time alone changes the plan next (an idle timeout, a back-off, a deadline)."""
