"""Does the queue keep order, bounds and counts whatever happens in whatever sequence?"""

import ast
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from berth.gateway import queueing
from berth.gateway.queueing import Queue, Refuse, Reject, Send


def queue(limit: int = 10, **runners: int) -> Queue:
    made = Queue(limit)
    for name, parallel in runners.items():
        made.runner_up(name, parallel)
    return made


def test_a_request_goes_to_a_free_runner_at_once():
    q = queue(a=1)
    assert q.arrive(1) == (Send(1, "a"),)


def test_at_most_parallel_requests_are_with_a_runner_and_the_rest_wait_in_order():
    q = queue(a=2)
    effects = [list(q.arrive(ticket)) for ticket in (1, 2, 3, 4)]
    assert effects == [[Send(1, "a")], [Send(2, "a")], [], []]
    assert list(q.leave(2)) == [Send(3, "a")]
    assert [q.position(ticket) for ticket in (3, 4)] == [0, 1]


def test_a_newcomer_does_not_overtake_those_who_wait():
    q = queue(a=1)
    q.arrive(1)
    q.arrive(2)
    q.leave(1)
    assert q.runner_of(2) == "a"
    assert list(q.arrive(3)) == []


def test_waiting_requests_are_sent_in_order_when_a_runner_comes_up():
    q = queue()
    for ticket in (1, 2, 3):
        q.arrive(ticket)
    assert list(q.runner_up("a", 2)) == [Send(1, "a"), Send(2, "a")]


def test_the_queue_is_bounded():
    q = queue(limit=1)
    q.arrive(1)
    assert list(q.arrive(2)) == [Reject(2)]
    assert list(q.waiting) == [1]


def test_a_refused_request_waits_at_the_head_and_its_runner_rests():
    q = queue(limit=2, a=2)
    for ticket in (1, 2, 3, 4):
        q.arrive(ticket)
    assert list(q.put_back(2)) == []
    assert list(q.put_back(1)) == []
    assert list(q.waiting) == [1, 2, 3, 4]
    assert list(q.retry("a")) == [Send(1, "a"), Send(2, "a")]


def test_a_refused_request_goes_to_another_runner_at_once():
    q = queue(a=1, b=1)
    (sent,) = q.arrive(1)
    other = {"a": "b", "b": "a"}[sent.runner]
    assert list(q.put_back(1)) == [Send(1, other)]


def test_requests_are_spread_by_free_slots():
    q = queue(a=1, b=3)
    runners = [next(iter(q.arrive(ticket))).runner for ticket in (1, 2, 3, 4)]
    assert runners == ["b", "b", "a", "b"]


def test_a_draining_runner_gets_nothing_more_and_keeps_what_it_has():
    q = queue(a=2)
    q.arrive(1)
    q.runner_closed("a")
    assert list(q.arrive(2)) == []
    assert q.in_flight == 1
    assert not q.has_runner
    assert list(q.leave(1)) == []
    assert q.lane("a") is None


def test_a_runner_that_comes_back_still_counts_what_it_has():
    q = queue(a=1)
    q.arrive(1)
    q.runner_closed("a")
    q.arrive(2)
    assert list(q.runner_up("a", 1)) == []
    assert list(q.leave(1)) == [Send(2, "a")]


def test_a_client_may_go_at_any_moment_and_twice():
    q = queue(a=1)
    q.arrive(1)
    q.arrive(2)
    q.arrive(3)
    assert list(q.leave(2)) == []
    assert list(q.leave(1)) == [Send(3, "a")]
    assert list(q.leave(1)) == []
    assert list(q.leave(99)) == []


def test_a_model_that_will_not_come_refuses_those_who_wait_and_nobody_else():
    q = queue(a=1)
    for ticket in (1, 2, 3):
        q.arrive(ticket)
    assert list(q.refuse_waiting()) == [Refuse(2), Refuse(3)]
    assert q.in_flight == 1


def test_the_state_machine_reads_no_clock_and_does_no_io():
    tree = ast.parse(Path(queueing.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [a.name for a in node.names]
        )
    }
    assert imported <= {"bisect", "collections", "dataclasses"}


class AnyHistory(RuleBasedStateMachine):
    """Any sequence of events, performed as the desk would, checked after each."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(limit=5)
        self.next = 0
        self.where: dict[int, str] = {}
        """Ticket → ``waiting`` or the runner that it was sent to."""
        self.parallel: dict[str, int] = {}
        self.open: set[str] = set()
        self.over: set[int] = set()

    def perform(self, effects) -> None:
        for effect in effects:
            match effect:
                case Send(ticket, runner):
                    assert self.where[ticket] == "waiting", "sent while with a runner"
                    assert runner in self.open, "sent to a closed runner"
                    older = [t for t, at in self.where.items() if at == "waiting" and t < ticket]
                    assert not older, "overtaken"
                    self.where[ticket] = runner
                case Reject(ticket) | Refuse(ticket):
                    assert self.where.pop(ticket) == "waiting"
                    self.over.add(ticket)

    @rule(target=tickets)
    def arrive(self):
        self.next += 1
        self.where[self.next] = "waiting"
        self.perform(self.queue.arrive(self.next))
        return self.next

    @rule(ticket=tickets)
    def leave(self, ticket):
        self.where.pop(ticket, None)
        self.over.add(ticket)
        self.perform(self.queue.leave(ticket))

    @rule(ticket=tickets)
    def put_back(self, ticket):
        if self.where.get(ticket, "waiting") != "waiting":
            self.where[ticket] = "waiting"
        self.perform(self.queue.put_back(ticket))

    @rule(runner=st.sampled_from("abc"), parallel=st.integers(1, 3))
    def runner_up(self, runner, parallel):
        self.parallel[runner] = parallel
        self.open.add(runner)
        self.perform(self.queue.runner_up(runner, parallel))

    @rule(runner=st.sampled_from("abc"))
    def runner_closed(self, runner):
        self.open.discard(runner)
        self.perform(self.queue.runner_closed(runner))

    @rule(runner=st.sampled_from("abc"))
    def retry(self, runner):
        self.perform(self.queue.retry(runner))

    @precondition(lambda self: not self.queue.has_runner)
    @rule()
    def refuse_waiting(self):
        self.perform(self.queue.refuse_waiting())

    @invariant()
    def nobody_is_lost_or_in_two_places(self):
        waiting = [t for t, at in self.where.items() if at == "waiting"]
        assert list(self.queue.waiting) == sorted(waiting)
        for ticket, at in self.where.items():
            assert self.queue.runner_of(ticket) == (None if at == "waiting" else at)
        for ticket in self.over:
            assert self.queue.runner_of(ticket) is None
            assert self.queue.position(ticket) == 0

    @invariant()
    def counts_balance(self):
        sent = [at for at in self.where.values() if at != "waiting"]
        assert self.queue.in_flight == len(sent)
        for runner in "abc":
            lane = self.queue.lane(runner)
            assert (len(lane.in_flight) if lane else 0) == sent.count(runner)

    @invariant()
    def nobody_waits_before_a_free_runner(self):
        lanes = [lane for r in "abc" if (lane := self.queue.lane(r)) is not None]
        if self.queue.waiting:
            assert all(lane.free <= 0 for lane in lanes)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=150, stateful_step_count=40)
TestAnyHistory.pytestmark = [pytest.mark.timeout(120)]
