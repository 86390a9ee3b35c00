"""What do odd and hostile requests, answers and key files get? Never a 500, never another's bytes. (E9, E10)"""

import hashlib
import json

import pytest
import yaml

from fakes.engine import Behaviour, FakeEngine
from gateway.world import OK, Upstream, chat, until, world

NEST = 100_000


async def raw(w, data):
    """Send these bytes; the answer to them."""
    async with w.client() as client:
        client.writer.write(data)
        return await client.answer()


def request(body, *lines):
    """A chat request with header lines of any bytes."""
    fixed = [b"POST /v1/chat/completions HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*fixed, *lines, b"", b""]) + body


@pytest.mark.parametrize("name", ["é日".encode(), b"\xe9\xff", b"a" * 200])
@pytest.mark.parametrize("model", ["m", "nobody"])
async def test_a_request_id_that_cannot_be_passed_on_is_replaced(name, model):
    body = json.dumps(chat(model)).encode()
    async with world() as w, FakeEngine().serving() as engine:
        w.model()
        w.up(engine.port)
        answer = await raw(w, request(body, b"X-Request-Id: " + name))
        assert answer.status == (200 if model == "m" else 404)
        assert answer.headers["x-request-id"].encode("latin-1") != name
        assert answer.headers["x-request-id"].isascii()


@pytest.mark.parametrize("start", [b'{"model":"m","x":', b'{"n":NaN,"model":"m","x":'])
async def test_json_nested_beyond_all_measure_is_400(start):
    async with world() as w:
        answer = await w.ask(start + b"[" * NEST + b"]" * NEST + b"}")
        assert (answer.status, answer.error["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("value", ["identity", "Identity", ""])
async def test_an_encoding_that_is_none_is_none(value):
    async with world() as w, FakeEngine().serving() as engine:
        w.model()
        w.up(engine.port)
        assert (await w.ask(chat(), Content_Encoding=value)).status == 200


async def test_every_hop_that_forwarded_is_told():
    lines = (b"X-Forwarded-For: 1.1.1.1", b"x-forwarded-for: 2.2.2.2, 3.3.3.3")
    async with world() as w, FakeEngine().serving() as engine:
        w.model()
        w.up(engine.port)
        await raw(w, request(json.dumps(chat()).encode(), *lines))
        (seen,) = engine.requests
        assert seen.headers["X-Forwarded-For"] == "1.1.1.1, 2.2.2.2, 3.3.3.3, 127.0.0.1"


@pytest.mark.parametrize("value", ["no", "false", 7])
async def test_a_stream_that_was_not_clearly_asked_for_waits_as_a_whole_answer(value):
    """Engines differ on what ``"stream": "no"`` means; the head of a stream would be a guess."""
    async with world() as w, w.client() as client, Upstream(_whole).serving() as upstream:
        w.model()
        client.send(json.dumps(chat(stream=value)).encode())
        await until(lambda: w.waiting, "it waits")
        w.up(upstream.port)
        assert (await client.answer()).body == b"{}"


async def _whole(upstream, reader, writer):
    await upstream.request(reader)
    writer.write(OK)


# -- answers --------------------------------------------------------------------------------------


async def test_a_runner_that_answers_before_it_read_the_body_gets_no_other_request_behind_it():
    """What is left unsent of a body would else be the start of somebody's next request."""

    async def early(upstream, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        upstream.requests.append((b"", b""))
        writer.write(OK)
        await upstream.until_closed(reader)

    async with world(BODY_MEMORY="0") as w, Upstream(early).serving() as upstream:
        w.model()
        w.up(upstream.port)
        assert (await w.ask(chat(pad="x" * (24 << 20)))).status == 200
        assert (await w.ask(chat())).status == 200
        assert upstream.connections == 2


async def test_a_runner_that_switches_protocols_is_a_502():
    async def switching(upstream, reader, writer):
        await upstream.request(reader)
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
        )
        await upstream.until_closed(reader)

    async with world() as w, Upstream(switching).serving() as upstream:
        w.model()
        w.up(upstream.port)
        answer = await w.ask(chat())
        assert (answer.status, answer.error["code"]) == (502, "runner_failed")


# -- keys -----------------------------------------------------------------------------------------


async def test_a_key_of_any_bytes_is_the_same_401(tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump({"keys": [{"name": "a", "key": "schlüssel"}]}))
    body = json.dumps(chat()).encode()
    async with world(KEYS_FILE=str(file)) as w, FakeEngine(Behaviour()).serving() as engine:
        w.model()
        w.up(engine.port)
        good = await raw(w, request(body, "Authorization: Bearer schlüssel".encode()))
        assert good.status == 200
        for bad in (b"\xff\xfe", b"schl\xfcssel", b""):
            for name in (b"Authorization: Bearer ", b"X-Api-Key: "):
                answer = await raw(w, request(body, name + bad))
                assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        answer = await raw(
            w, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\n\r\n"
        )
        assert answer.status == 401


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "just text",
        "keys: {a: b}",
        "keys: [[]]",
        "keys: [{name: a, key: sk-a, models: '*'}]",
        "keys: [{name: a, key: sk-a, namespaces: team}]",
        "keys: [{name: a, key: ''}]",
        "keys: [{name: a, key: null}]",
        "keys: [{name: a, key: sk-a, model: [m]}]",
        f"keys: [{{name: a, sha256: '{hashlib.sha256(b'').hexdigest()}'}}]",
        "keys: [{name: a, sha256: abcd}]",
        "keys: [{name: a}]",
    ],
)
async def test_a_keys_file_that_could_mean_more_than_it_says_opens_nothing(tmp_path, text):
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    async with world(KEYS_FILE=str(file)) as w:
        w.model()
        for headers in ({}, {"Authorization": "Bearer sk-a"}, {"Authorization": "Bearer None"}):
            assert (await w.get("/v1/models", **headers)).status == 401
