"""Do requests that begin alike meet on one runner, without crowding it? (L6)"""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.gateway.prefix import prefix_of
from berth.gateway.queueing import BOUND, Queue, Send
from fakes.engine import FakeEngine
from gateway.world import chat, world

SYSTEM = {"role": "system", "content": "You are terse."}
ASKED = {"role": "user", "content": "What is a berth?"}
SAID = {"role": "assistant", "content": "A place for a ship."}
MORE = {"role": "user", "content": "And for a model?"}


def prefix(**body):
    return prefix_of(json.dumps(body).encode())


def queue(*runners, parallel=4):
    made = Queue(1000)
    for runner in runners:
        made.runner_up(runner, parallel)
    return made


def home(q, prefix):
    """Where a lone request of this prefix goes."""
    (sent,) = q.arrive(10**9, prefix)
    q.leave(10**9)
    return sent.runner


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(
            {"messages": [SYSTEM, ASKED]},
            {"model": "m", "messages": [SYSTEM, ASKED, SAID, MORE], "temperature": 1},
            id="the next turn of a chat",
        ),
        pytest.param(
            {"system": "terse", "messages": [ASKED]},
            {"system": "terse", "messages": [ASKED, SAID, MORE]},
            id="the next turn where the system prompt stands apart",
        ),
        pytest.param({"input": [ASKED]}, {"input": [ASKED, SAID, MORE]}, id="responses, as a list"),
        pytest.param(
            {"prompt": "x" * 2000}, {"prompt": "x" * 2000 + " and more"}, id="a text that grows"
        ),
    ],
)
def test_what_continues_begins_alike(first, then):
    assert prefix(**first) == prefix(**then) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"messages": [SYSTEM, ASKED]}, {"messages": [SYSTEM, MORE]}),
        ({"messages": [ASKED]}, {"messages": [SYSTEM, ASKED]}),
        ({"messages": [ASKED]}, {"messages": [ASKED], "tools": [{"name": "f"}]}),
        ({"input": "a"}, {"input": "b"}),
    ],
)
def test_what_begins_otherwise_is_told_apart(one, other):
    assert prefix(**one) != prefix(**other)


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"nonsense", b'{"messages": 1}', b'{"messages": [{"role": null}]}']
)
def test_what_has_no_beginning_has_none(body):
    assert prefix_of(body) is None


def test_a_conversation_stays_where_it_is():
    q = queue("a", "b", "c")
    assert len({home(q, 7) for _ in range(20)}) == 1


def test_conversations_are_spread():
    q = queue("a", "b", "c", "d")
    counts = Counter(home(q, n * 0x9E3779B97F4A7C15 % 2**64) for n in range(4000))
    assert all(800 < count < 1200 for count in counts.values()), counts


def test_who_has_to_wait_takes_the_first_slot_there_is():
    q = queue("a", "b", parallel=1)
    q.arrive(1, 1)
    q.arrive(2, 2)
    assert list(q.arrive(3, 1)) == []
    other = {"a": "b", "b": "a"}[q.runner_of(1)]
    assert q.runner_of(2) == other
    assert list(q.leave(2)) == [Send(3, other)]


PREFIX = st.integers(0, 2**64 - 1)
NAMES = st.lists(st.uuids().map(str), min_size=2, max_size=8, unique=True)


@given(names=NAMES, prefixes=st.lists(PREFIX, min_size=1, max_size=30))
def test_a_runner_that_comes_or_goes_moves_only_what_it_has(names, prefixes):
    *stay, guest = names
    before, during = queue(*stay), queue(*stay, guest)
    for one in prefixes:
        assert home(during, one) in (home(before, one), guest)
    during.runner_closed(guest)
    assert [home(during, one) for one in prefixes] == [home(before, one) for one in prefixes]


@given(
    names=NAMES,
    arrivals=st.lists(st.tuples(PREFIX | st.just(7), st.booleans()), min_size=1, max_size=60),
)
def test_no_runner_is_crowded_for_the_sake_of_its_cache(names, arrivals):
    """A runner beyond its bound gets one only as every runner's share is beyond it, too."""
    q = queue(*names, parallel=100)
    live: list[int] = []
    for ticket, (one, ends) in enumerate(arrivals):
        held = Counter(q.runner_of(t) for t in live)
        (sent,) = q.arrive(ticket, one)
        assert held[sent.runner] < max(1, BOUND * (len(live) + 1) / len(names))
        live.append(ticket)
        if ends:
            q.leave(live.pop(0))


async def test_turns_of_a_conversation_meet_on_one_runner():
    async with world() as w, FakeEngine().serving() as one, FakeEngine().serving() as two:
        w.model(caches_prefix=True)
        w.up(one.port, runner="r1", parallel=4)
        w.up(two.port, runner="r2", parallel=4)
        for talk in range(12):
            turns = [{"role": "user", "content": f"talk {talk}"}]
            for turn in range(4):
                assert (await w.ask(chat(messages=turns))).status == 200
                turns = [*turns, SAID, {"role": "user", "content": f"turn {turn}"}]
        w.gateway.ledger.flush()
        homes = [line["runner"] for line in w.lines]
        talks = [set(homes[at : at + 4]) for at in range(0, len(homes), 4)]
        assert all(len(talk) == 1 for talk in talks)
        assert set(homes) == {"r1", "r2"}


async def test_an_engine_without_such_a_cache_gets_by_free_slots():
    async with world() as w, FakeEngine().serving() as one, FakeEngine().serving() as two:
        w.model()
        w.up(one.port, runner="r1", parallel=1)
        w.up(two.port, runner="r2", parallel=4)
        for _ in range(3):
            await w.ask(chat())
        assert (len(one.requests), len(two.requests)) == (0, 3)


async def test_the_endpoint_offers_what_the_engine_declares():
    """R6: the API and the model are named, and what the model does offer."""
    async with world() as w, FakeEngine().serving() as engine:
        w.model(apis=("embeddings", "tokenize"))
        w.up(engine.port)
        answer = await w.ask(chat())
        assert (answer.status, answer.error["code"]) == (404, "api_not_offered")
        assert answer.error["berth"]["apis"] == ["embeddings", "tokenize"]
        assert "chat" in answer.error["message"]
        assert "m" in answer.error["message"]
        assert (await w.ask({"model": "m", "input": "a"}, path="/v1/embeddings")).status == 200
        assert engine.requests[-1].path == "/v1/embeddings"
        (row,) = (await w.get("/v1/models")).json["data"]
        assert row["berth"]["apis"] == ["embeddings", "tokenize"]
