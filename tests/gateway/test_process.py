"""Does the program start from a file, refuse nothing while it stops, and end with 0?"""

import asyncio
import json
import signal
import subprocess
import sys

import yaml

from fakes.engine import Behaviour, FakeEngine
from gateway.world import Client, chat

MODEL = {"id": "m"}


async def start(tmp_path, engine, **settings):
    """A gateway process over a file, and its port."""
    static = tmp_path / "models.yaml"
    models = [{"id": "m", "upstreams": [f"127.0.0.1:{engine.port}"], "parallel": 4}]
    static.write_text(yaml.safe_dump({"models": models}))
    given = {"HOST": "127.0.0.1", "PORT": "0", "GATEWAY_GRACE": "300ms", **settings}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "berth.gateway.main",
        "--static",
        str(static),
        env={f"BERTH_{name}": value for name, value in given.items()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(20):
        while b"listens on port" not in (line := await process.stderr.readline()):
            assert line, "the gateway ended early"
    return process, int(line.rsplit(maxsplit=1)[1])


async def connect(port):
    return Client(*await asyncio.open_connection("127.0.0.1", port))


async def test_sigterm_finishes_streams_and_serves_what_arrives_in_the_grace(tmp_path):
    behaviour = Behaviour(tokens=20, token_s=0.05, slots=4)
    async with FakeEngine(behaviour).serving() as engine:
        process, port = await start(tmp_path, engine)
        streaming, late = await connect(port), await connect(port)
        streaming.send(json.dumps(chat(stream=True)).encode())
        await streaming.head()
        await streaming.chunk()
        process.send_signal(signal.SIGTERM)
        probe = await connect(port)
        while True:
            probe.send(None, method="GET", path="/readyz")
            ready = await probe.answer()
            if ready.status == 503:
                break
        assert ready.json["status"] == "draining"
        late.send(json.dumps(chat(max_tokens=1)).encode())
        assert (await late.answer()).status == 200
        while True:
            probe = await connect(port)
            probe.send(json.dumps(chat(max_tokens=1)).encode())
            answer = await probe.answer()
            assert answer.headers["connection"] == "close"
            if answer.status == 503:
                break
            assert answer.status == 200
        assert answer.error["code"] == "gateway_stopping"
        assert answer.headers["retry-after"] == "30"
        rest = b""
        while piece := await streaming.chunk():
            rest += piece
        assert rest.endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_sigterm_does_not_wait_for_ever(tmp_path):
    async with FakeEngine(Behaviour(hang_after=1, slots=4)).serving() as engine:
        process, port = await start(tmp_path, engine, GATEWAY_GRACE="0s", GATEWAY_DRAIN="300ms")
        client = await connect(port)
        client.send(json.dumps(chat(stream=True)).encode())
        await client.head()
        process.send_signal(signal.SIGTERM)
        answer = await asyncio.wait_for(client.reader.read(), 10)
        assert b"[DONE]" not in answer
        assert await asyncio.wait_for(process.wait(), 10) == 0


def test_nothing_of_the_kubeconfig_reader_is_loaded_in_a_pod():
    """It costs each gateway and each agent 12 MB."""
    code = "import sys, berth.gateway.main; print('kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
