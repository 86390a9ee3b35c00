"""Does a key get what its limits say, and its neighbours theirs?"""

import asyncio

import pytest
import yaml

from berth.gateway.errors import Refused
from berth.gateway.keys import Caller
from berth.gateway.limits import Meters
from fakes.engine import Behaviour, FakeEngine
from gateway.world import chat, until, world


def test_a_minutes_worth_at_once_then_evenly():
    now = [100.0]
    meters, caller = Meters(lambda: now[0]), Caller("a", per_minute=30)

    def ask() -> int | None:
        try:
            with meters.admitted(caller):
                return None
        except Refused as refused:
            return refused.retry_after

    assert [ask() for _ in range(31)] == [None] * 30 + [2]
    now[0] += 1
    assert ask() == 1
    now[0] += 1
    assert [ask(), ask()] == [None, 2]
    now[0] += 3600
    assert [ask() for _ in range(31)] == [None] * 30 + [2]


def test_what_is_refused_costs_nothing_and_an_error_gives_its_place_back():
    meters, caller = Meters(lambda: 0.0), Caller("a", per_minute=2, concurrent=1)
    with meters.admitted(caller):
        for _ in range(5):
            with pytest.raises(Refused), meters.admitted(caller):
                pass
    with pytest.raises(ZeroDivisionError), meters.admitted(caller):
        raise ZeroDivisionError
    with pytest.raises(Refused, match="2 a minute"), meters.admitted(caller):
        pass


async def test_a_key_at_its_bound_is_429_while_others_are_served(tmp_path):
    file = tmp_path / "keys.yaml"
    rows = [
        {"name": "batch", "key": "sk-batch", "concurrent": 1},
        {"name": "slow", "key": "sk-slow", "requestsPerMinute": 1},
        {"name": "free", "key": "sk-free"},
    ]
    file.write_text(yaml.safe_dump({"keys": rows}))
    async with world(KEYS_FILE=str(file)) as w, FakeEngine(Behaviour(slots=9)).serving() as engine:
        w.model()

        def ask(key):
            return w.ask(chat(), Authorization=f"Bearer {key}")

        first = asyncio.ensure_future(ask("sk-batch"))
        await until(lambda: w.waiting, "one waits: it counts")
        second = await ask("sk-batch")
        assert (second.status, second.error["code"]) == (429, "key_limit")
        assert second.headers["retry-after"] == "1"
        w.up(engine.port, parallel=9)
        assert (await first).status == 200
        assert [(await ask("sk-batch")).status for _ in range(3)] == [200] * 3
        assert [(await ask("sk-slow")).status for _ in range(2)] == [200, 429]
        assert (await w.get("/v1/models", Authorization="Bearer sk-slow")).status == 200
        assert [(await ask("sk-free")).status for _ in range(9)] == [200] * 9
