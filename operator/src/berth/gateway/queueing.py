"""Which request of one model goes to which runner, and which waits? A pure state machine.

Events are methods, effects are what they return; the caller performs them. No clock, no I/O: a test
drives it with nothing else. A request counts from `arrive` to `leave`, wherever it is meanwhile.
Tickets are numbers that rise with arrival; order is theirs, also after a put-back.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

Ticket = int
RunnerId = str


@dataclass(frozen=True, slots=True)
class Send:
    """The request goes to this runner now."""

    ticket: Ticket
    runner: RunnerId


@dataclass(frozen=True, slots=True)
class Reject:
    """The request does not get in: the queue is at its bound."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request leaves the queue unserved, for the reason that the caller gave."""

    ticket: Ticket


BOUND = 1.25
"""How much more than its even share a runner may have in hand for the sake of its cache."""
_BITS = (1 << 64) - 1

Effect = Send | Reject | Refuse
NONE: tuple[Effect, ...] = ()


@dataclass(slots=True)
class Lane:
    """One runner: what it may take and what it has in hand."""

    parallel: int
    is_open: bool = True
    """Routable: up, not draining."""
    is_set_aside: bool = False
    """It refused a request; nothing is sent until `retry`."""
    in_flight: set[Ticket] = field(default_factory=set)
    seed: int = 0
    """Of its name: where it stands for each prefix."""

    @property
    def free(self) -> int:
        """Slots that may be given now."""
        if not self.is_open or self.is_set_aside:
            return 0
        return max(0, self.parallel - len(self.in_flight))


class Queue:
    """The requests and runners of one model in one gateway. ``limit`` bounds those that wait."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: deque[Ticket] = deque()
        self._lanes: dict[RunnerId, Lane] = {}
        self._runner_of: dict[Ticket, RunnerId] = {}

    # -- what it looks like --------------------------------------------------------------------

    @property
    def waiting(self) -> Sequence[Ticket]:
        """Tickets that wait, first to be served first."""
        return self._waiting

    @property
    def in_flight(self) -> int:
        """Requests that are with a runner."""
        return len(self._runner_of)

    @property
    def is_empty(self) -> bool:
        """Nobody waits and nothing is in flight."""
        return not self._waiting and not self._runner_of

    @property
    def has_runner(self) -> bool:
        """Some runner is open and has not just refused."""
        for lane in self._lanes.values():  # noqa: SIM110 - a generator costs thrice as much
            if lane.is_open and not lane.is_set_aside:
                return True
        return False

    def runner_of(self, ticket: Ticket) -> RunnerId | None:
        """The runner that has this request."""
        return self._runner_of.get(ticket)

    def lane(self, runner: RunnerId) -> Lane | None:
        """What is known of a runner; None when nothing is in flight there and it is gone."""
        return self._lanes.get(runner)

    def position(self, ticket: Ticket) -> int:
        """1 for the next to be served; 0 for a request that does not wait."""
        try:
            return self._waiting.index(ticket) + 1
        except ValueError:
            return 0

    # -- events of requests --------------------------------------------------------------------

    def arrive(self, ticket: Ticket, prefix: int | None = None) -> Sequence[Effect]:
        """A new request. It is sent at once only when nobody waits before it.

        ``prefix`` (64 bits) says which requests begin alike: they meet on one runner where it can be.
        Who has to wait takes the first slot there is; order is worth more than a warm cache.
        """
        if not self._waiting:
            runner = self._freest() if prefix is None else self._kin(prefix)
            if runner is not None:
                return (self._send(ticket, runner),)
        if len(self._waiting) >= self.limit:
            return (Reject(ticket),)
        self._waiting.append(ticket)
        return NONE

    def leave(self, ticket: Ticket) -> Sequence[Effect]:
        """The request is over, wherever it is: answered, failed, timed out, its client gone."""
        if self._take_from_lane(ticket):
            return self._fill()
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        return NONE

    def put_back(self, ticket: Ticket) -> Sequence[Effect]:
        """Its runner refused it or went away before the first byte of an answer.

        It waits again ahead of all that came later (the limit does not count: it was in already);
        the runner gets nothing more until `retry` or a new `runner_up`.
        """
        runner = self._take_from_lane(ticket)
        if not runner:
            return NONE
        lane = self._lanes.get(runner)
        if lane is not None:
            lane.is_set_aside = True
        insort(self._waiting, ticket)
        return self._fill()

    # -- events of runners ---------------------------------------------------------------------

    def runner_up(self, runner: RunnerId, parallel: int) -> Sequence[Effect]:
        """A runner may be sent ``parallel`` requests at once. Again: a new bound, a second chance."""
        lane = self._lanes.setdefault(runner, Lane(parallel, seed=_seed(runner)))
        lane.parallel, lane.is_open, lane.is_set_aside = parallel, True, False
        return self._fill()

    def runner_closed(self, runner: RunnerId) -> Sequence[Effect]:
        """A runner drains or is gone: nothing more is sent; what it has in hand stays counted."""
        lane = self._lanes.get(runner)
        if lane is not None:
            lane.is_open = False
            self._forget_if_done(runner, lane)
        return NONE

    def retry(self, runner: RunnerId) -> Sequence[Effect]:
        """A runner that refused has rested."""
        lane = self._lanes.get(runner)
        if lane is not None:
            lane.is_set_aside = False
        return self._fill()

    # -- events of the model -------------------------------------------------------------------

    def refuse_waiting(self) -> Sequence[Effect]:
        """The model will not come (failed, held, refused, deleted): nobody waits in vain."""
        effects = tuple(Refuse(ticket) for ticket in self._waiting)
        self._waiting.clear()
        return effects

    # -- inside --------------------------------------------------------------------------------

    def _freest(self) -> RunnerId | None:
        """The runner with most free slots; of equals the one with least in hand, then the first."""
        best, most, least = None, 0, 0
        for runner, lane in self._lanes.items():
            free = lane.free
            if free > most or (free and free == most and len(lane.in_flight) < least):
                best, most, least = runner, free, len(lane.in_flight)
        return best

    def _kin(self, prefix: int) -> RunnerId | None:
        """The runner for a prefix: consistent hashing (by highest weight) with bounded loads.

        1. Each prefix ranks the runners in an order of its own, which no other runner's coming or
           going changes.
        2. The first with a free slot, and with no more in hand than ``BOUND`` times its even
           share, takes it.
        3. Where there is none, the freest does.
        """
        total = sum(len(lane.in_flight) for lane in self._lanes.values() if lane.is_open)
        count = sum(1 for lane in self._lanes.values() if lane.is_open)
        best, most = None, -1
        for runner, lane in self._lanes.items():
            if not lane.free or len(lane.in_flight) * count >= BOUND * (total + 1):
                continue
            weight = _weight(prefix, lane.seed)
            if weight > most:
                best, most = runner, weight
        return best or self._freest()

    def _send(self, ticket: Ticket, runner: RunnerId) -> Send:
        self._lanes[runner].in_flight.add(ticket)
        self._runner_of[ticket] = runner
        return Send(ticket, runner)

    def _fill(self) -> Sequence[Effect]:
        """Give free slots to those that wait, in order."""
        if not self._waiting:
            return NONE
        effects: list[Effect] = []
        while self._waiting:
            runner = self._freest()
            if runner is None:
                break
            effects.append(self._send(self._waiting.popleft(), runner))
        return effects

    def _take_from_lane(self, ticket: Ticket) -> RunnerId | None:
        runner = self._runner_of.pop(ticket, None)
        if runner is None:
            return None
        lane = self._lanes[runner]
        lane.in_flight.discard(ticket)
        self._forget_if_done(runner, lane)
        return runner

    def _forget_if_done(self, runner: RunnerId, lane: Lane) -> None:
        if not lane.is_open and not lane.in_flight:
            del self._lanes[runner]


def _seed(runner: RunnerId) -> int:
    """FNV-1a: the same in every gateway, and in the next start of this one."""
    value = 0xCBF29CE484222325
    for byte in runner.encode():
        value = (value ^ byte) * 0x100000001B3 & _BITS
    return value


def _weight(prefix: int, seed: int) -> int:
    """The two mixed (murmur's finalizer), so that every prefix has an order of its own."""
    value = (prefix ^ seed) * 0xFF51AFD7ED558CCD & _BITS
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _BITS
    return value ^ value >> 33
