"""Does everything pass byte for byte, as it comes, by the rules of HTTP? (E2, E3, E4, E9, E15)"""

import asyncio
import json

import pytest

from gateway.world import OK, SSE, Upstream, answering, chat, chunked, until, world


def scripted(*pieces, pause_s=0.0):
    """A runner that answers with these bytes, one write each."""

    async def handler(upstream, reader, writer):
        while True:
            await upstream.request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)

    return handler


async def test_the_body_and_the_path_arrive_as_they_were_sent():
    body = b'{ "messages" : [{"content":"\\u00e9\xc3\xa9 \\ud83d"}],\n"x":1e400, "model":"m" , "model2":"no"}'
    async with world() as w, Upstream(answering).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answer = await w.ask(
            body, path="/v1/chat/completions?a=%2F&b", X_Custom="Ü-1", Accept_Encoding="gzip"
        )
        assert (answer.status, answer.body) == (200, b"{}")
        head, sent = upstream.requests[0]
        assert sent == body
        assert head.startswith(b"POST /v1/chat/completions?a=%2F&b HTTP/1.1\r\n")
        assert b"X-Custom: \xc3\x9c-1\r\n" in head
        assert b"ccept-" not in head


async def test_headers_of_one_hop_and_keys_stay_behind():
    answer_head = (
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Kept: a\r\nX-Kept: b\r\n"
        b"Set-Cookie: c=1\r\nServer: engine\r\nContent-Length: 2\r\n\r\n{}"
    )
    async with world() as w, Upstream(scripted(answer_head)).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answer = await w.ask(
            chat(),
            Authorization="Bearer sk-secret",
            X_Api_Key="sk-secret",
            Connection="X-Mine, keep-alive",
            X_Mine="1",
            TE="trailers",
            X_Request_Id="mine-1",
            X_Forwarded_For="10.0.0.1",
        )
        head = upstream.requests[0][0]
        assert b"sk-secret" not in head
        assert b"X-Mine" not in head
        assert b"TE:" not in head
        assert b"X-Request-Id: mine-1\r\n" in head
        assert b"X-Forwarded-For: 10.0.0.1, 127.0.0.1\r\n" in head
        assert (answer.headers["server"], answer.headers["x-request-id"]) == ("engine", "mine-1")
        assert "x-hop" not in answer.headers


async def test_a_stream_flows_chunk_by_chunk_as_it_comes():
    frames = [b'data: {"n":%d}\n\n' % n for n in range(20)]
    pieces = [SSE, *map(chunked, frames), b"0\r\n\r\n"]
    async with world() as w, Upstream(scripted(*pieces, pause_s=0.02)).serving() as upstream:
        w.model()
        w.up(upstream.port)
        async with w.client() as client:
            client.send(json.dumps(chat(stream=True)).encode(), Accept_Encoding="gzip, br")
            status, headers = await client.head()
            assert status == 200
            assert headers["content-type"] == "text/event-stream"
            assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache")
            assert "content-encoding" not in headers
            assert "content-length" not in headers
            got = [await client.chunk() for _ in range(21)]
        assert got == [*frames, b""]


async def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection():
    pieces = [SSE, chunked(b"data: 1\n\n"), b"0\r\n\r\n"]
    async with (
        world() as w,
        Upstream(scripted(*pieces)).serving() as upstream,
        w.client() as client,
    ):
        w.model()
        w.up(upstream.port)
        body = json.dumps(chat(stream=True)).encode()
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        answer = await client.answer()
        assert answer.body == b"data: 1\n\n"
        assert "transfer-encoding" not in answer.headers


async def test_an_answer_framed_by_the_end_of_the_connection_is_whole():
    async def closes(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nabc")

    async with world() as w, Upstream(closes).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answer = await w.ask(chat())
        assert (answer.body, answer.is_whole) == (b"abc", True)


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body(status):
    async with world() as w, Upstream(scripted(b"HTTP/1.1 %d X\r\n\r\n" % status)).serving() as up:
        w.model()
        w.up(up.port)
        async with w.client() as client:
            client.send(json.dumps(chat()).encode())
            assert (await client.head())[0] == status
            client.send(json.dumps(chat()).encode())
            assert (await client.head())[0] == status


async def test_early_hints_of_the_runner_do_not_confuse():
    pieces = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK
    async with world() as w, Upstream(scripted(pieces)).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answer = await w.ask(chat())
        assert (answer.status, answer.body) == (200, b"{}")
        assert "link" not in answer.headers


@pytest.mark.parametrize("end", ["closed", "reset"])
async def test_a_runner_that_dies_in_a_stream_is_told_as_an_event_without_done(end):
    async def dies(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(SSE + chunked(b'data: {"half'))
        await writer.drain()
        await asyncio.sleep(0.05)
        if end == "reset":
            writer.transport.abort()

    async with world() as w, Upstream(dies).serving() as upstream:
        w.model()
        w.up(upstream.port, parallel=2)
        answer = await w.ask(chat(stream=True))
        assert not answer.is_whole
        last = answer.body.split(b"\n\n")[-2]
        assert json.loads(last[6:])["error"]["code"] == "runner_died"
        assert b"[DONE]" not in answer.body
        assert len(upstream.requests) == 1, "an answer that has begun is not asked for again"
        assert w.running == 0


async def test_a_runner_that_dies_in_a_whole_answer_leaves_it_visibly_short():
    async def dies(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")

    async with world() as w, Upstream(dies).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answer = await w.ask(chat())
        assert (answer.status, answer.is_whole) == (200, False)


async def test_what_is_not_http_is_a_502():
    async with world() as w, Upstream(scripted(b"SSH-2.0-OpenSSH\r\n")).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answer = await w.ask(chat())
        assert (answer.status, answer.error["code"]) == (502, "runner_failed")


async def test_an_error_of_the_engine_after_keepalives_is_an_event():
    body = b'{"error":{"message":"context exceeded"}}'
    piece = b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with world() as w, Upstream(scripted(piece)).serving() as upstream:
        w.model()
        asked = asyncio.ensure_future(w.ask(chat(stream=True)))
        await until(lambda: w.waiting == 1, "in line")
        w.up(upstream.port)
        answer = await asked
        assert answer.is_whole
        error = answer.events[-1]["error"]
        assert (error["code"], error["berth"]["status"]) == ("bad_runner_answer", 400)
        assert "context exceeded" in error["message"]


async def test_a_client_that_does_not_read_stops_the_runner_not_the_gateway():
    sent = 0

    async def floods(upstream, reader, writer):
        nonlocal sent
        await upstream.request(reader)
        writer.write(SSE)
        piece = chunked(b"data: " + b"x" * 60_000 + b"\n\n")
        for _ in range(2000):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        writer.write(b"0\r\n\r\n")

    async with world() as w, Upstream(floods).serving() as upstream, w.client() as client:
        w.model()
        w.up(upstream.port)
        client.writer.transport.pause_reading()
        client.send(json.dumps(chat(stream=True)).encode())
        before = -1
        while before != sent or not sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 60_000_000, "the runner was stopped"
        client.writer.transport.resume_reading()
        answer = await asyncio.wait_for(client.answer(), 30)
        assert answer.is_whole
        assert len(answer.body) == 2000 * 60_008


async def test_a_first_read_that_is_more_than_the_client_takes_does_not_stop_the_answer():
    size = 8 << 20

    async def floods(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        await writer.drain()

    async with world() as w, Upstream(floods).serving() as upstream, w.client() as client:
        w.model()
        w.up(upstream.port)
        for _ in range(3):
            client.send(json.dumps(chat()).encode())
            await asyncio.sleep(0.05)
            answer = await asyncio.wait_for(client.answer(), 20)
            assert len(answer.body) == size


# -- bodies (E4) ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [900_000, 1_100_000, 12 << 20, 31 << 20])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_large_bodies_pass(size, framing):
    body = json.dumps(chat(image="x" * size)).encode()
    async with world() as w, Upstream(answering).serving() as upstream, w.client() as client:
        w.model()
        w.up(upstream.port)
        if framing == "chunked":
            client.send(b"", Transfer_Encoding="chunked")
            for at in range(0, len(body), 100_000):
                client.writer.write(chunked(body[at : at + 100_000]))
            client.writer.write(b"0\r\n\r\n")
        else:
            client.send(body)
        answer = await asyncio.wait_for(client.answer(), 20)
        assert answer.status == 200
        assert upstream.requests[0][1] == body
        await until(lambda: w.gateway.proxy.store.in_memory == 0, "the memory given back")


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_above_the_limit_is_413(framing):
    async with world(BODY_LIMIT="1Mi") as w, w.client() as client:
        w.model()
        body = b"x" * (2 << 20)
        if framing == "chunked":
            client.send(b"", Transfer_Encoding="chunked")
            client.writer.write(chunked(body) + b"0\r\n\r\n")
        else:
            client.send(body)
        answer = await asyncio.wait_for(client.answer(), 10)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert w.gateway.proxy.store.in_memory == 0


async def test_bodies_beyond_the_memory_budget_are_kept_on_disk():
    bodies = [json.dumps(chat(image=str(n) * 400_000)).encode() for n in range(6)]
    async with world(BODY_MEMORY="1Mi") as w, Upstream(answering).serving() as upstream:
        w.model()
        asked = [asyncio.ensure_future(w.ask(body)) for body in bodies]
        await until(lambda: w.waiting == 6, "all in line")
        assert w.gateway.proxy.store.in_memory <= 1 << 20
        w.up(upstream.port)
        assert [a.status for a in await asyncio.gather(*asked)] == [200] * 6
        assert sorted(body for _, body in upstream.requests) == sorted(bodies)
        await until(lambda: w.gateway.proxy.store.in_memory == 0, "the memory given back")


async def test_curl_is_told_to_go_on_with_a_large_body():
    async with world() as w, Upstream(answering).serving() as upstream, w.client() as client:
        w.model()
        w.up(upstream.port)
        body = json.dumps(chat()).encode()
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(body)
        assert (await client.answer()).status == 200
        assert b"xpect" not in upstream.requests[0][0]


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    b'RIFF\r\n--bogus name="model"\r\n\r\nnope\r\n--b\r\n'
    b'Content-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
)


async def test_a_multipart_form_names_its_model_anywhere():
    async with world() as w, Upstream(answering).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answer = await w.ask(
            FORM, path="/v1/audio/transcriptions", Content_Type="multipart/form-data; boundary=b"
        )
        assert answer.status == 200
        assert upstream.requests[0][1] == FORM


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (FORM[:-20], "multipart/form-data; boundary=b", "invalid_multipart"),
        (FORM, "multipart/form-data", "invalid_multipart"),
        (b'{"model":', "application/json", "invalid_json"),
        (b"[1]", "application/json", "invalid_json"),
        (b"", "application/json", "invalid_json"),
        (b'{"model":7}', "application/json", "invalid_json"),
        (b'{"model":{}}', "application/json", "invalid_json"),
        (b'{"model":null}', "application/json", "missing_model"),
        (b"{}", "application/json", "missing_model"),
        (b'{"model":"\xff"}', "application/json", "invalid_json"),
    ],
)
async def test_a_body_that_cannot_be_read_is_400(body, content_type, code):
    async with world() as w:
        w.model()
        answer = await w.ask(body, Content_Type=content_type)
        assert (answer.status, answer.error["code"]) == (400, code)


async def test_a_compressed_body_is_415():
    async with world() as w:
        answer = await w.ask(b"\x1f\x8b", Content_Encoding="gzip")
        assert (answer.status, answer.error["code"]) == (415, "unsupported_encoding")


# -- paths (E9) -----------------------------------------------------------------------------------

PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/responses",
    "/v1/messages",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/tokenize",
    "/detokenize",
    "/infill",
]


@pytest.mark.parametrize("path", PATHS)
async def test_every_api_passes_with_and_without_a_trailing_slash(path):
    async with world() as w, Upstream(answering).serving() as upstream:
        w.model()
        w.up(upstream.port)
        assert (await w.ask({"model": "m"}, path=path)).status == 200
        assert (await w.ask({"model": "m"}, path=path + "/")).status == 200
        assert {head.split()[1].decode() for head, _ in upstream.requests} == {path}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/slots", 404, "unknown_url"),
        ("POST", "/slots/0?action=erase", 404, "unknown_url"),
        ("GET", "/props", 404, "unknown_url"),
        ("POST", "/v1/../slots", 404, "unknown_url"),
    ],
)
async def test_what_is_not_served_is_told_in_openais_shape(method, path, status, code):
    async with world() as w:
        answer = await w.ask(b"{}", method=method, path=path)
        assert (answer.status, answer.error["code"]) == (status, code)
        assert set(answer.error) >= {"message", "type", "param", "code"}


async def test_bytes_that_are_not_http_get_our_shape_too():
    async with world() as w, w.client() as client:
        client.writer.write(b"GET / HTTP/1.1\r\nbad header\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (400, "invalid_request")


async def test_one_connection_serves_many_requests():
    async with world() as w, Upstream(answering).serving() as upstream, w.client() as client:
        w.model()
        w.up(upstream.port)
        for _ in range(5):
            client.send(json.dumps(chat()).encode())
            assert (await client.answer()).status == 200
            client.send(json.dumps(chat("nobody")).encode())
            assert (await client.answer()).status == 404
        assert upstream.connections == 1
