"""Usage by day, stalls told, and the page of a model that is away. (O17, O20, O21)"""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from berth.gateway.alarm import Alarm
from berth.gateway.daybook import KEPT_DAYS, OTHER, Daybook
from berth.gateway.usage import Usage
from berth.reasons import State
from fakes.engine import FakeEngine
from gateway.world import SSE, Upstream, chat, chunked, until, world

NOON = datetime(2026, 3, 31, 12, tzinfo=UTC)
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class Clock:
    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now.timestamp()


def rows(folder, day="2026-03-31", gateway="gw-0"):
    return json.loads((folder / f"{day}.{gateway}.json").read_text())


def row(model="a/m", key="team", requests=1, prompt=0, completion=0):
    return {
        "model": model,
        "key": key,
        "requests": requests,
        "promptTokens": prompt,
        "completionTokens": completion,
    }


# -- days -----------------------------------------------------------------------------------------


def test_a_restart_goes_on_where_it_was(tmp_path):
    clock = Clock()
    for _ in range(2):
        book = Daybook(tmp_path, "gw-0", clock)
        book.add("a/m", "team", Usage(10, 5))
        book.add("a/m", "other-team", Usage())
        book.save()
    assert rows(tmp_path) == [
        row(requests=2, prompt=20, completion=10),
        row(key="other-team", requests=2),
    ]


def test_each_day_has_a_file_and_each_gateway_its_own(tmp_path):
    clock = Clock()
    one, two = Daybook(tmp_path, "gw-0", clock), Daybook(tmp_path, "gw-1", clock)
    one.add("a/m", "team", Usage(1, 1))
    two.add("a/m", "team", Usage(2, 2))
    clock.now += timedelta(days=1)
    for book in (one, two):
        book.add("a/m", "team", Usage(3, 3))
        book.save()
    two.save()
    assert rows(tmp_path) == [row(prompt=1, completion=1)]
    assert rows(tmp_path, "2026-04-01", "gw-1") == [row(prompt=3, completion=3)]
    assert len(list(tmp_path.iterdir())) == 4


def test_old_days_go(tmp_path):
    clock = Clock()
    book = Daybook(tmp_path, "gw-0", clock)
    book.add("a/m", "team", Usage())
    for step in (KEPT_DAYS, 2):
        clock.now += timedelta(days=step)
        book.add("a/m", "team", Usage())
    assert [file.name[:10] for file in tmp_path.iterdir()] == ["2027-05-05"]


def test_a_day_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("berth.gateway.daybook.ROWS_MAX", 2)
    book = Daybook(tmp_path, "gw-0", Clock())
    for number in range(5):
        book.add(f"a/m{number}", "team", Usage(1, 1))
    book.save()
    last = row(model=OTHER, key=OTHER, requests=3, prompt=3, completion=3)
    assert rows(tmp_path) == [*(row(f"a/m{n}", prompt=1, completion=1) for n in (0, 1)), last]


async def test_requests_of_a_gateway_are_on_disk_once_it_has_ended(tmp_path):
    async with world(USAGE_DIR=str(tmp_path)) as w, FakeEngine().serving() as engine:
        w.model()
        w.up(engine.port)
        for _ in range(3):
            assert (await w.ask(chat())).status == 200
        assert (await w.ask(chat("nobody"))).status == 404
    (file,) = tmp_path.iterdir()
    (found,) = json.loads(file.read_text())
    assert (found["model"], found["key"], found["requests"]) == ("default/m", "anonymous", 3)
    assert found["completionTokens"] > 0


# -- stalls ---------------------------------------------------------------------------------------


async def test_an_answer_that_stops_coming_is_told_once_and_by_names_only():
    told = []
    alarm = Alarm(told.append, after_s=60)

    async def stuck(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(SSE + chunked(b"data: {}\n\n"))
        await upstream.until_closed(reader)

    async with world() as w, Upstream(stuck).serving() as upstream, w.client() as client:
        w.model()
        w.up(upstream.port)
        client.send(json.dumps(chat(stream=True)).encode())
        await client.head()
        await client.chunk()
        for now in (0, 30, 59, 60, 90):
            alarm.look(w.gateway.proxy.live, now)
        (fact,) = told
        assert fact.pop("request")
        assert fact == {
            "event": "stall",
            "seconds": 60,
            "bytes": 10,
            "model": "default/m",
            "runner": "r1",
        }
        client.leave()
        await until(lambda: not w.gateway.proxy.live, "it is over")


async def test_who_waits_or_gets_tokens_is_no_stall():
    told = []
    alarm = Alarm(told.append, after_s=1)
    sent = asyncio.Event()

    async def slow(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(SSE)
        for _ in range(3):
            writer.write(chunked(b"data: {}\n\n"))
            await sent.wait()
            sent.clear()
        writer.write(b"0\r\n\r\n")

    async with world() as w, Upstream(slow).serving() as upstream, w.client() as client:
        w.model()
        client.send(json.dumps(chat()).encode())
        await until(lambda: w.waiting, "it waits")
        alarm.look(w.gateway.proxy.live, 0)
        alarm.look(w.gateway.proxy.live, 100)
        w.up(upstream.port)
        await client.head()
        for now in range(200, 203):
            await client.chunk()
            alarm.look(w.gateway.proxy.live, now)
            sent.set()
        assert told == []


async def test_the_push_url_is_called():
    async with FakeEngine().serving() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/v1/chat/completions"
        async with world(PUSH_URL=url, STALL_AFTER="50ms") as w:
            w.gateway.alarm._push({"event": "stall", "model": "default/m"})
            await until(lambda: receiver.requests, "it is called")
        assert receiver.requests[0].body["event"] == "stall"


# -- the page -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [s for s in State if s is not State.UP])
async def test_a_browser_gets_a_page_that_looks_again(state):
    async with world() as w:
        w.model(state=state, message="<b>3 of 4 GiB</b>")
        answer = await w.get("/v1/models/m", **HTML)
        assert answer.status == 503
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["refresh"] == "5"
        assert b"&lt;b&gt;3 of 4 GiB&lt;/b&gt;" in answer.body
        assert b"<script" not in answer.body
        assert w.recorder.words == [], "to look is not to ask for it (D1)"


async def test_once_it_is_back_the_same_address_shows_what_was_asked_for():
    async with world() as w:
        w.model()
        assert (await w.get("/v1/models/m", **HTML)).status == 503
        w.change(state=State.UP)
        answer = await w.get("/v1/models/m", **HTML)
        assert (answer.status, answer.json["id"]) == (200, "m")


async def test_a_program_gets_json_all_the_time():
    async with world() as w:
        w.model()
        for accept in ("application/json", "*/*"):
            answer = await w.get("/v1/models/m", Accept=accept)
            assert (answer.status, answer.json["id"]) == (200, "m")
