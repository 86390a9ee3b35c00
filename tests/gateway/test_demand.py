"""Is Demand told at once, beaten, throttled, and told later when the API server was away?"""

import asyncio
from typing import Any

from berth.api.meta import moment_of
from berth.gateway.demand import FIRST_RETRY_S, DemandBook
from gateway.world import Recorder, until

KEY = "default/m"


class SlowRecorder(Recorder):
    """A write takes as long as one does on a busy API server."""

    async def write(self, key: str, manager: str, status: dict[str, Any]) -> None:
        await asyncio.sleep(0.02)
        await super().write(key, manager, status)


def book() -> tuple[DemandBook, Recorder]:
    recorder = Recorder()
    return DemandBook(recorder, "gw-0"), recorder


async def test_waiting_is_written_at_once_beaten_and_withdrawn():
    demand, recorder = book()
    entry = demand.entry(KEY, 1800)
    demand.waiting(entry, 1)
    await until(lambda: recorder.waiting(), "the first word")
    demand.waiting(entry, 5)
    await asyncio.sleep(0)
    assert len(recorder.waiting()) == 1, "a rising count is told with the next beat"
    demand.beat()
    await until(lambda: len(recorder.waiting()) == 2, "the beat")
    (first,), (second,) = recorder.waiting()
    assert (first["gateway"], first["requests"], second["requests"]) == ("gw-0", 1, 5)
    assert second["beat"] > first["beat"]
    assert second["since"] == first["since"]
    demand.waiting(entry, 0)
    await until(lambda: recorder.waiting()[-1] == [], "the withdrawal")
    demand.beat()
    await asyncio.sleep(0.01)
    assert len(recorder.waiting()) == 3, "nobody waits: nothing beats"


async def test_a_new_wait_is_a_new_since_and_a_higher_beat():
    demand, recorder = book()
    entry = demand.entry(KEY, 1800)
    for requests in (1, 0, 1):
        demand.waiting(entry, requests)
        await until(lambda: not entry.tasks["waiting"] or entry.tasks["waiting"].done(), "written")
    first, _, second = recorder.waiting()
    assert second[0]["since"] > first[0]["since"]
    assert second[0]["beat"] > first[0]["beat"]


async def test_a_refused_request_is_told_for_a_moment(monkeypatch):
    monkeypatch.setattr("berth.gateway.demand.LINGER_S", 0.05)
    demand, recorder = book()
    entry = demand.entry(KEY, 1800)
    demand.linger(entry)
    demand.linger(entry)
    await until(lambda: len(recorder.waiting()) == 2, "told and withdrawn")
    assert recorder.waiting()[0][0]["requests"] == 1
    assert recorder.waiting()[1] == []


async def test_what_could_not_be_written_is_written_when_the_api_server_is_back():
    demand, recorder = book()
    recorder.fails = True
    entry = demand.entry(KEY, 1800)
    demand.waiting(entry, 1)
    demand.used(entry)
    await asyncio.sleep(FIRST_RETRY_S / 5)
    assert recorder.words == []
    recorder.fails = False
    await until(lambda: len(recorder.words) == 2, "both facts")
    assert recorder.waiting()[0][0]["requests"] == 1
    assert recorder.used()


async def test_a_demand_that_is_not_there_yet_is_tried_again():
    demand, recorder = book()
    recorder.absent = True
    demand.waiting(demand.entry(KEY, 1800), 1)
    await asyncio.sleep(0.01)
    recorder.absent = False
    await until(lambda: recorder.waiting(), "the word")


async def test_use_is_written_at_once_then_at_most_once_an_interval_and_the_last_is_not_lost():
    demand, recorder = book()
    entry = demand.entry(KEY, 1800)
    # The least recently used goes first: who that is must be known better than to the minute.
    assert entry.interval_s == 10
    assert demand.entry("default/c", 30).interval_s == 10
    assert demand.entry("default/d", 0).interval_s == 10
    # Three words within the time: one may be late, and the model is still not taken for idle.
    assert demand.entry("default/e", 15).interval_s == 5
    assert demand.entry("default/f", 3).interval_s == 1
    assert demand.entry("default/g", 0.1).interval_s == 0.5
    entry.interval_s = 0.2
    for _ in range(50):
        demand.used(entry)
        await asyncio.sleep(0)
    await until(lambda: len(recorder.used()) == 1, "the first use")
    assert entry.use_is_due or len(recorder.used()) == 1
    demand.used(entry)
    await until(lambda: len(recorder.used()) == 2, "the last use")
    await asyncio.sleep(0.25)
    assert len(recorder.used()) == 2


async def test_a_use_that_ends_while_the_one_before_is_written_is_told_and_so_are_all_after_it():
    recorder = SlowRecorder()
    demand = DemandBook(recorder, "gw-0")
    entry = demand.entry(KEY, 1800)
    entry.interval_s = 0.05
    demand.used(entry)
    await asyncio.sleep(0.01)
    demand.used(entry)
    await until(lambda: len(recorder.used()) == 2, "the end of the first answer")
    demand.used(entry)
    await until(lambda: len(recorder.used()) == 3, "the next request")


async def test_a_use_is_told_with_the_moment_it_was_and_not_that_of_the_telling():
    demand, recorder = book()
    entry = demand.entry(KEY, 1800)
    entry.interval_s = 0.3
    demand.used(entry)
    await until(lambda: len(recorder.used()) == 1, "the first use")
    demand.used(entry)
    await until(lambda: len(recorder.used()) == 2, "the last use")
    first, last = (moment_of(stamp) for stamp in recorder.used())
    assert last - first < 0.2


async def test_use_and_waiting_have_managers_of_their_own():
    demand, recorder = book()
    entry = demand.entry(KEY, 1800)
    demand.waiting(entry, 1)
    demand.used(entry)
    await until(lambda: len(recorder.words) == 2, "both facts")
    managers = {manager: status.keys() for _, manager, status in recorder.words}
    assert managers == {"berth-gateway-gw-0": {"waiting"}, "berth-gateway-used": {"used"}}


async def test_a_gateway_that_ends_withdraws_its_word():
    demand, recorder = book()
    demand.waiting(demand.entry(KEY, 1800), 3)
    await until(lambda: recorder.waiting(), "the word")
    await demand.withdraw()
    assert recorder.waiting()[-1] == []


async def test_a_deleted_model_is_not_spoken_of_again():
    demand, recorder = book()
    entry = demand.entry(KEY, 1800)
    recorder.fails = True
    demand.waiting(entry, 1)
    demand.forget(KEY)
    recorder.fails = False
    demand.used(entry)
    demand.waiting(entry, 2)
    await asyncio.sleep(0.05)
    assert recorder.words == []
