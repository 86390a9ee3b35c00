"""What does the reader of clients' requests make of what comes over a wire? (E1, E4, E9)"""

import asyncio
import json

import pytest

from berth.gateway import inbound
from fakes.engine import FakeEngine
from gateway.world import chat, until, world

LIST = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body, *lines):
    head = [b"POST /v1/chat/completions HTTP/1.1", b"Host: x", *lines]
    return b"\r\n".join([*head, b"", b""]) + body


async def test_requests_sent_ahead_are_answered_in_order():
    async with world() as w, w.client() as client, FakeEngine().serving() as engine:
        w.model()
        w.up(engine.port)
        body = json.dumps(chat()).encode()
        first = post(body, b"Content-Length: %d" % len(body))
        client.writer.write(LIST + first + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" + LIST)
        answers = [await client.answer() for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 404, 200]
        assert "choices" in answers[1].json


async def test_a_request_is_read_from_single_bytes():
    async with world() as w, w.client() as client, FakeEngine().serving() as engine:
        w.model()
        w.up(engine.port)
        body = json.dumps(chat()).encode()
        for byte in post(body, b"Content-Length: %d" % len(body)):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"hello\r\n\r\n", id="no HTTP"),
        pytest.param(post(b"", b"Content-Length: 1", b"Content-Length: 2"), id="two lengths"),
        pytest.param(
            post(b"0\r\n\r\n", b"Content-Length: 3", b"Transfer-Encoding: chunked"),
            id="length and chunks",
        ),
        pytest.param(post(b"x", b"Transfer-Encoding: chunked, gzip"), id="no end of chunks"),
        pytest.param(post(b"", b"Content-Length: -1"), id="length below nothing"),
        pytest.param(post(b"", b"Bad Name: 1"), id="name with a space"),
        pytest.param(post(b"", b"X: a", b" folded"), id="folded line"),
        pytest.param(post(b"zz\r\n", b"Transfer-Encoding: chunked"), id="size that is no number"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * (80 << 10), id="head without end"),
    ],
)
async def test_what_could_be_read_in_two_ways_is_400_and_the_end(data):
    """Whatever stands behind it might be meant as somebody else's request."""
    async with world() as w, w.client() as client:
        client.writer.write(data + LIST)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (400, "invalid_request")
        assert answer.headers["connection"] == "close"
        assert await client.reader.read() == b""


async def test_what_came_before_a_broken_request_is_still_answered():
    async with world() as w, w.client() as client:
        client.writer.write(LIST + b"hello\r\n\r\n")
        assert [(await client.answer()).status for _ in range(2)] == [200, 400]


async def test_an_offer_of_another_protocol_is_ignored():
    async with world() as w, w.client() as client:
        offer = (
            b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        )
        client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")


async def test_a_whole_url_is_a_path():
    async with world() as w, w.client() as client:
        client.writer.write(b"GET http://gateway.test/v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer()).status == 200


async def test_a_client_that_still_sends_can_read_why_it_is_refused():
    async with world(BODY_LIMIT="64KiB") as w, w.client() as client:
        size = 8 << 20
        client.writer.write(post(b"x" * (1 << 20), b"Content-Length: %d" % size))
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        client.writer.write(b"x" * (size - (1 << 20)))
        assert await client.reader.read() == b""


async def test_a_body_that_nobody_reads_yet_is_not_taken_in(monkeypatch):
    """Reading stops; what the sender has left waits in its own buffers."""
    taken = 0
    hold = asyncio.Event()

    async def handle(request):
        nonlocal taken
        await hold.wait()
        while data := await request.body.read():
            taken += len(data)
        return False

    listener = inbound.Listener(handle)
    server = await asyncio.get_running_loop().create_server(listener, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    size = 32 << 20
    writer.write(post(b"", b"Content-Length: %d" % size) + b"x" * size)
    await until(lambda: listener.connections, "it is there")
    (connection,) = listener.connections
    await until(lambda: connection._is_paused, "reading stops")
    assert connection._requests[0].body.size < 4 * inbound.AHEAD_MAX
    hold.set()
    await reader.read()
    assert taken == size
    server.close()
    await listener.close(1.0)


async def test_idle_connections_end_and_others_do_not(monkeypatch):
    monkeypatch.setattr(inbound, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(inbound, "SWEEP_S", 0.02)
    async with world() as w, w.client() as waits, w.client() as idle, w.client() as slow:
        w.model()
        body = json.dumps(chat()).encode()
        waits.send(body)
        slow.writer.write(b"GET /v1/models HTTP/1.1\r\nHo")
        assert await idle.reader.read() == b""
        assert await slow.reader.read() == b""
        async with FakeEngine().serving() as engine:
            w.up(engine.port)
            assert (await waits.answer()).status == 200
