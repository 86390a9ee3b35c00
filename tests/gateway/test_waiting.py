"""What happens to requests for a model that is not up, refuses, dies, or never comes? (C1, C3, C12, C24, C28, E1, E10, E14)"""

import asyncio
import json

import pytest

from berth.gateway.catalog import Refusal
from berth.reasons import Reason, State
from fakes.engine import Behaviour, FakeEngine
from gateway.world import OK, SSE, Upstream, answering, chat, chunked, until, world


async def test_requests_for_a_cold_model_wait_and_demand_says_so():
    async with world() as w, FakeEngine(Behaviour(slots=4)).serving() as engine:
        w.model()
        asked = [asyncio.ensure_future(w.ask(chat())) for _ in range(3)]
        await until(lambda: w.waiting == 3, "three requests in line")
        await until(lambda: w.recorder.waiting(), "the entry in Demand")
        w.up(engine.port, parallel=4)
        assert [a.status for a in await asyncio.gather(*asked)] == [200, 200, 200]
        await until(lambda: w.recorder.waiting()[-1] == [], "the entry withdrawn")
        first = w.recorder.waiting()[0][0]
        assert (first["gateway"], first["requests"]) == ("gw-0", 1)
        assert w.recorder.used()


async def test_a_changed_idle_timeout_changes_how_often_use_is_told():
    async with world() as w, FakeEngine().serving() as engine:
        w.model(idle_timeout_s=3600)
        w.up(engine.port)
        await w.ask(chat())
        entry = w.gateway.desk.lines["default/m"].entry
        assert entry.interval_s == 10
        w.change(idle_timeout_s=3)
        assert entry.interval_s == 1


async def test_order_of_arrival_is_kept_with_one_at_a_time():
    async with world() as w, FakeEngine(Behaviour(tokens=1)).serving() as engine:
        w.model()
        asked = []
        for number in range(8):
            asked.append(asyncio.ensure_future(w.ask(chat(user=str(number)))))
            await until(lambda n=number: w.waiting == n + 1, "in line")
        w.up(engine.port)
        await asyncio.gather(*asked)
        assert [seen.body["user"] for seen in engine.requests] == [str(n) for n in range(8)]


async def test_a_stream_for_a_cold_model_gets_its_head_and_data_frames_at_once():
    async with world() as w, FakeEngine(Behaviour()).serving() as engine, w.client() as client:
        w.model(state=State.STARTING, load_seconds=(40, 50, 60), since="2026-01-01T00:00:00Z")
        client.send(json.dumps(chat(stream=True)).encode())
        status, headers = await asyncio.wait_for(client.head(), 1)
        assert status == 200
        assert headers["content-type"].startswith("text/event-stream")
        assert (headers["x-berth-state"], headers["x-berth-queue-position"]) == ("Starting", "1")
        assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache")
        for _ in range(3):
            frame = json.loads((await asyncio.wait_for(client.chunk(), 1))[6:])
            assert frame["object"] == "chat.completion.chunk"
            assert frame["choices"][0]["delta"] == {"content": ""}
            assert frame["berth"]["state"] == "Starting"
            assert frame["berth"]["timeLeft"] == pytest.approx(50, abs=2)
        w.up(engine.port)
        rest = b""
        while piece := await asyncio.wait_for(client.chunk(), 5):
            rest += piece
        assert b"word0" in rest
        assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses"])
async def test_other_streams_get_comments(path):
    async with world() as w, w.client() as client:
        w.model()
        client.send(json.dumps({"model": "m", "stream": True}).encode(), path=path)
        assert (await asyncio.wait_for(client.head(), 1))[0] == 200
        assert (await client.chunk()).startswith(b": berth {")


async def test_a_stream_that_waits_for_a_busy_runner_keeps_the_runners_own_status():
    async def refuses(upstream, reader, writer):
        await upstream.request(reader)
        await asyncio.sleep(0.01)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")

    async with world(KEEPALIVE="10s") as w, Upstream(refuses).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answers = await asyncio.gather(*(w.ask(chat(stream=True)) for _ in range(3)))
        assert [a.status for a in answers] == [400, 400, 400]


async def test_a_load_that_fails_ends_streams_with_an_event_and_others_with_503():
    async with world() as w:
        w.model()
        stream = asyncio.ensure_future(w.ask(chat(stream=True)))
        whole = asyncio.ensure_future(w.ask(chat()))
        await until(lambda: w.waiting == 2, "both in line")
        w.change(state=State.FAILED, message="image not found")
        streamed, answered = await stream, await whole
        assert streamed.status == 200
        assert streamed.is_whole
        assert streamed.events[-1]["error"]["code"] == "model_failed"
        assert b"[DONE]" not in streamed.body
        assert (answered.status, answered.error["code"]) == (503, "model_failed")
        assert "retry-after" not in answered.headers
        assert answered.headers["x-should-retry"] == "false"
        assert answered.error["berth"]["message"] == "image not found"


async def test_a_wait_that_runs_out_says_how_long_a_start_takes():
    async with world(NONSTREAM_WAIT="50ms", QUEUE_TIMEOUT="150ms") as w:
        w.model(state=State.FETCHING, load_seconds=(12, 90, 30), profile="fast")
        answer = await w.ask(chat())
        assert (answer.status, answer.error["code"]) == (503, "model_not_ready")
        assert answer.headers["retry-after"] == "30"
        facts = answer.error["berth"]
        assert (facts["model"], facts["state"], facts["profile"]) == (
            "default/m",
            "Fetching",
            "fast",
        )
        streamed = await w.ask(chat(stream=True))
        assert streamed.events[-1]["error"]["code"] == "model_not_ready"
        await until(lambda: w.waiting == 0, "nobody in line")


FINAL = [
    (Reason.NEVER_FITS, "insufficient_capacity"),
    (Reason.ONLY_PINNED, "no_evictable_model"),
    (Reason.NO_NODE, "no_matching_node"),
    (Reason.NO_DEVICE, "no_matching_device"),
    (Reason.CPU_NOT_ALLOWED, "cpu_runners_not_allowed"),
    (Reason.UNTRUSTED_PATH, "host_path_not_allowed"),
    (Reason.UNTRUSTED_CODE, "code_not_trusted"),
]


@pytest.mark.parametrize(("reason", "code"), FINAL)
async def test_a_final_refusal_answers_at_once_with_its_numbers_and_is_still_looked_at_again(
    reason, code
):
    async with world() as w:
        places = ({"node": "a", "need": 100, "have": 24},)
        w.model(state=State.WAITING, refusal=Refusal(reason, "needs 100 GiB", places))
        answer = await w.ask(chat(stream=True))
        assert (answer.status, answer.error["code"]) == (503, code)
        assert "retry-after" not in answer.headers
        assert "needs 100 GiB" in answer.error["message"]
        assert answer.error["berth"]["places"] == [dict(places[0])]
        await until(lambda: w.recorder.waiting(), "a word to the controller")


async def test_a_refusal_that_speaks_of_an_older_spec_is_not_believed():
    async with world() as w, FakeEngine(Behaviour()).serving() as engine:
        refusal = Refusal(Reason.NEVER_FITS)
        w.model(state=State.WAITING, refusal=refusal, is_current=False)
        asked = asyncio.ensure_future(w.ask(chat()))
        await until(lambda: w.waiting == 1, "in line")
        w.up(engine.port)
        assert (await asked).status == 200


async def test_a_refusal_that_may_pass_waits():
    async with world(NONSTREAM_WAIT="50ms") as w:
        w.model(state=State.WAITING, refusal=Refusal(Reason.BUSY, "all busy"))
        answer = await w.ask(chat())
        assert (answer.status, answer.error["code"]) == (503, "model_not_ready")
        assert answer.error["berth"]["reason"] == "RunnersBusy"


@pytest.mark.parametrize(
    ("fields", "code", "retry"),
    [
        pytest.param({"state": State.HELD, "load_seconds": (7,)}, "model_held", "7", id="held"),
        pytest.param({"is_suspended": True}, "model_suspended", None, id="suspended"),
    ],
)
async def test_a_model_that_is_kept_away_answers_at_once(fields, code, retry):
    async with world() as w:
        w.model(**fields)
        answer = await w.ask(chat())
        assert (answer.status, answer.error["code"]) == (503, code)
        assert answer.headers.get("retry-after") == retry


async def test_a_full_queue_is_429_and_other_models_do_not_notice():
    async with world(QUEUE_LIMIT="2") as w, FakeEngine(Behaviour()).serving() as engine:
        w.model()
        w.model("other")
        w.up(engine.port, "other")
        held = [asyncio.ensure_future(w.ask(chat())) for _ in range(2)]
        await until(lambda: w.waiting == 2, "a full queue")
        answer = await w.ask(chat())
        assert (answer.status, answer.error["code"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await w.ask(chat("other"))).status == 200
        for task in held:
            task.cancel()


async def test_a_runner_that_refuses_the_connection_costs_nothing():
    async with world() as w, FakeEngine(Behaviour()).serving() as engine:
        w.model()
        w.up(1, runner="dead")
        asked = asyncio.ensure_future(w.ask(chat()))
        await until(lambda: w.waiting == 1, "put back")
        w.down(runner="dead", state=State.STARTING)
        w.up(engine.port, runner="alive")
        assert (await asked).status == 200


@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_a_runner_that_dies_before_the_first_byte_is_followed_by_another(how):
    async def dies(upstream, reader, writer):
        await upstream.request(reader)
        if how == "reset":
            writer.transport.abort()

    async with (
        world() as w,
        Upstream(dies).serving() as dying,
        FakeEngine(Behaviour()).serving() as engine,
    ):
        w.model()
        w.up(dying.port, runner="dying", parallel=2)
        asked = asyncio.ensure_future(w.ask(chat(stream=True)))
        await until(lambda: w.waiting == 1, "put back")
        w.down(runner="dying")
        w.up(engine.port, runner="alive")
        answer = await asked
        assert answer.status == 200
        assert answer.events[-1] == "[DONE]"


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Content-Length: 9"])
async def test_a_runner_that_dies_after_its_head_and_before_the_first_byte_is_followed_by_another(
    framing,
):
    """vLLM sends its head before it has read the prompt."""

    async def dies(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%b\r\n\r\n" % framing)
        await writer.drain()
        await asyncio.sleep(0.02)

    async with (
        world(KEEPALIVE="5s") as w,
        Upstream(dies).serving() as dying,
        FakeEngine(Behaviour()).serving() as engine,
    ):
        w.model()
        w.up(dying.port, runner="dying")
        asked = asyncio.ensure_future(w.ask(chat(stream=True)))
        await until(lambda: w.waiting == 1, "put back")
        w.down(runner="dying")
        w.up(engine.port, runner="alive")
        assert (await asked).events[-1] == "[DONE]"


async def test_a_head_without_a_body_is_not_held_for_ever():
    async def thinks(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(SSE)
        await upstream.until_closed(reader)

    async with world() as w, Upstream(thinks).serving() as upstream, w.client() as client:
        w.model()
        w.up(upstream.port)
        client.send(json.dumps(chat(stream=True)).encode())
        status, _ = await asyncio.wait_for(client.head(), 2)
        assert status == 200
        client.leave()
        await asyncio.wait_for(until(lambda: upstream.closed == 1, "the runner freed"), 1)


async def test_a_request_on_which_three_runners_die_is_not_given_to_a_fourth():
    async def dies(upstream, reader, writer):
        await upstream.request(reader)

    async with world() as w, Upstream(dies).serving() as upstream:
        w.model()
        w.up(upstream.port, parallel=4)
        answer = await w.ask(chat())
        assert (answer.status, answer.error["code"]) == (502, "runner_failed")
        assert len(upstream.requests) == 3
        assert w.running == 0


async def test_an_engine_that_says_it_loads_is_waited_for():
    async with world() as w, FakeEngine(Behaviour(load_s=0.7)).serving() as engine:
        w.model()
        w.up(engine.port)
        assert (await w.ask(chat())).status == 200


async def test_another_503_of_the_engine_is_passed_on():
    body = b'{"error":{"message":"no slot","code":503}}'

    async def busy(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(
            b"HTTP/1.1 503 X\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )

    async with world() as w, Upstream(busy).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answer = await w.ask(chat())
        assert (answer.status, answer.headers["retry-after"], answer.body) == (503, "7", body)


async def test_the_time_of_an_answer_does_not_count_as_waiting():
    async with (
        world(NONSTREAM_WAIT="100ms") as w,
        FakeEngine(Behaviour(first_token_s=0.4, tokens=1)).serving() as engine,
    ):
        w.model()
        w.up(engine.port)
        assert (await w.ask(chat())).status == 200


async def test_a_model_deleted_while_requests_wait_is_not_found():
    async with world() as w:
        w.model()
        asked = asyncio.ensure_future(w.ask(chat()))
        await until(lambda: w.waiting == 1, "in line")
        w.catalog.drop_model("default/m")
        answer = await asked
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert w.gateway.desk.lines == {}


async def test_swapping_models_under_load_gives_only_answers_or_errors_in_shape():
    """C12: requests for A go on while A's runner comes and goes."""
    async with (
        world(QUEUE_LIMIT="20", NONSTREAM_WAIT="2s") as w,
        FakeEngine(Behaviour(slots=8, tokens=1)).serving() as engine,
    ):
        w.model()

        async def swap():
            for _ in range(20):
                w.up(engine.port, parallel=8)
                await asyncio.sleep(0.01)
                w.down()
                await asyncio.sleep(0.01)
            w.up(engine.port, parallel=8)

        swapping = asyncio.ensure_future(swap())
        answers = []
        for _ in range(10):
            answers += await asyncio.gather(*(w.ask(chat()) for _ in range(30)))
        await swapping
        assert {a.status for a in answers} <= {200, 429, 503}
        assert all(a.is_whole and a.json for a in answers)
        assert (w.waiting, w.running) == (0, 0)


# -- clients that leave (E1) ---------------------------------------------------------------------


async def test_a_client_that_leaves_the_queue_is_forgotten_at_once():
    async with world() as w, w.client() as client:
        w.model()
        client.send(json.dumps(chat()).encode())
        await until(lambda: w.waiting == 1, "in line")
        client.leave()
        await until(lambda: w.waiting == 0, "out of line")
        await until(lambda: w.recorder.waiting()[-1:] == [[]], "the entry withdrawn")
        await until(lambda: w.lines and w.lines[-1]["error"] == "client_gone", "the log line")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_head_frees_the_runner(stream):
    async def thinks(upstream, reader, writer):
        await upstream.request(reader)
        await upstream.until_closed(reader)

    async with world() as w, Upstream(thinks).serving() as upstream, w.client() as client:
        w.model()
        w.up(upstream.port)
        client.send(json.dumps(chat(stream=stream)).encode())
        await until(lambda: upstream.requests, "the request at the runner")
        client.leave()
        await asyncio.wait_for(until(lambda: upstream.closed == 1, "the runner freed"), 1)
        assert w.running == 0


async def test_a_client_that_leaves_in_a_stream_frees_the_runner():
    async def speaks(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(SSE + chunked(b"data: 1\n\n"))
        await upstream.until_closed(reader)

    async with world() as w, Upstream(speaks).serving() as upstream, w.client() as client:
        w.model()
        w.up(upstream.port)
        client.send(json.dumps(chat(stream=True)).encode())
        await client.head()
        assert await client.chunk() == b"data: 1\n\n"
        client.leave()
        await asyncio.wait_for(until(lambda: upstream.closed == 1, "the runner freed"), 1)
        assert w.running == 0


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing():
    async with world() as w, w.client() as client:
        w.model()
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{"
        )
        await until(lambda: w.gateway.ledger.in_flight == 1, "the request seen")
        client.leave()
        await until(lambda: w.gateway.ledger.in_flight == 0, "the request gone")
        assert w.gateway.proxy.store.in_memory == 0


async def test_a_kept_connection_that_the_engine_closed_is_replaced_unseen():
    """E6: the engine closes after one answer without saying so, as after its idle timeout."""

    async def closes(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(OK)
        await upstream.request(reader)

    async with world() as w, Upstream(closes).serving() as upstream:
        w.model()
        w.up(upstream.port)
        statuses = [(await w.ask(chat())).status for _ in range(10)]
        assert statuses == [200] * 10
        assert {line["retries"] for line in w.lines} <= {0}


async def test_an_idle_connection_is_closed_before_engines_do(monkeypatch):
    monkeypatch.setattr("berth.gateway.upstream.IDLE_S", 0.05)
    async with world() as w, Upstream(answering).serving() as upstream:
        w.model()
        w.up(upstream.port)
        for _ in range(3):
            assert (await w.ask(chat())).status == 200
        assert upstream.connections == 1
        pool = w.gateway.proxy.pool
        await until(lambda: not pool._idle, "idle connections dropped")
        assert (await w.ask(chat())).status == 200
        assert upstream.connections == 2
