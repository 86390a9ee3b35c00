"""Which models does the endpoint list and find, for whom, and what counts as use? (D1, E11, E15, X6)"""

import hashlib
import os
import threading
from urllib.parse import quote

import pytest
import yaml

from berth.gateway.accounting import BACKLOG, LineWriter
from berth.reasons import State
from fakes.engine import Behaviour, FakeEngine
from gateway.world import chat, until, world

NAMES = [
    "meta-llama/Llama-3.1-8B",
    "qwen2.5:7b",
    "a.b@c d",
    "Qwen",
    "qwen",
    "ключ-模型",
    "x" * 253,
]


@pytest.mark.parametrize("name", NAMES)
async def test_any_id_is_found_exactly_as_it_is_written(name):
    async with world() as w, FakeEngine(Behaviour(slots=8)).serving() as engine:
        for number, other in enumerate(NAMES):
            w.model(f"m{number}", id=other)
        w.up(engine.port, f"m{NAMES.index(name)}", parallel=8)
        assert (await w.ask(chat(name))).status == 200
        for path in (quote(name, safe=""), quote(name, safe="/:@")):
            answer = await w.get(f"/v1/models/{path}")
            assert (answer.status, answer.json["id"]) == (200, name)


async def test_the_list_shows_every_declared_model_in_an_order_that_stays():
    async with world() as w:
        w.model("c", created=3, state=State.FAILED)
        w.model("a", created=1, context_length=4096, state=State.UP)
        w.model("b", created=2, aliases=("bb",))
        for _ in range(2):
            answer = await w.get("/v1/models")
            assert answer.status == 200
            rows = [(row["id"], row["created"], row["owned_by"]) for row in answer.json["data"]]
            assert rows == [("a", 1, "default"), ("b", 2, "default"), ("c", 3, "default")]
            w.change("a", state=State.DOWN)
        assert answer.json["data"][0]["context_length"] == 4096
        assert answer.json["data"][2]["berth"]["state"] == "Failed"


async def test_an_alias_and_a_namespaced_id_mean_the_model():
    async with world() as w, FakeEngine(Behaviour(slots=4)).serving() as engine:
        w.model(aliases=("gpt-4o",))
        w.up(engine.port, parallel=4)
        for name in ("m", "gpt-4o", "default::m", "default::gpt-4o"):
            assert (await w.ask(chat(name))).status == 200
            assert (await w.get(f"/v1/models/{name}")).status == 200
        for name in ("other::m", "M", "m ", "::m", "default::"):
            answer = await w.ask(chat(name))
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert answer.error["param"] == "model"


async def test_an_id_that_two_models_hold_is_never_guessed():
    async with world() as w:
        w.model("one", id="llama", created=1)
        w.model("two", id="llama", namespace="team", created=2)
        answer = await w.ask(chat("llama"))
        assert (answer.status, answer.error["code"]) == (409, "ambiguous_model")
        assert "default::llama" in answer.error["message"]
        assert "team::llama" in answer.error["message"]
        rows = (await w.get("/v1/models")).json["data"]
        assert [row["id"] for row in rows] == ["default::llama", "team::llama"]


async def test_the_first_holder_keeps_its_id_once_the_younger_is_told():
    async with world() as w, FakeEngine(Behaviour(slots=2)).serving() as engine:
        w.model("one", id="llama", created=1)
        w.model("two", id="llama", namespace="team", created=2, is_duplicate=True)
        w.up(engine.port, "one")
        assert (await w.ask(chat("llama"))).status == 200
        rows = (await w.get("/v1/models")).json["data"]
        assert [row["id"] for row in rows] == ["llama", "team::llama"]


async def test_looking_is_no_use_and_loads_nothing():
    async with world() as w:
        w.model()
        for path in (
            "/v1/models",
            "/v1/models/m",
            "/metrics",
            "/health",
            "/healthz",
            "/readyz",
            "/props",
            "/slots",
        ):
            await w.get(path)
        assert w.recorder.words == []
        assert w.gateway.desk.lines == {}


async def test_a_gateway_that_knows_no_list_yet_does_not_say_not_found():
    async with world() as w:
        w.catalog.is_ready = False
        answer = await w.ask(chat("m"))
        assert (answer.status, answer.error["code"]) == (503, "gateway_starting")
        assert (await w.get("/readyz")).status == 503
        assert (await w.get("/healthz")).status == 200


# -- keys -----------------------------------------------------------------------------------------


def write_keys(path, *rows):
    path.write_text(yaml.safe_dump({"keys": list(rows)}))


async def test_keys_open_what_they_name_and_the_401_is_the_same_everywhere(tmp_path):
    file = tmp_path / "keys.yaml"
    write_keys(
        file,
        {"name": "all", "key": "sk-all"},
        {"name": "llamas", "sha256": hashlib.sha256(b"sk-llama").hexdigest(), "models": ["llama*"]},
        {"name": "team", "key": "sk-team", "namespaces": ["team"]},
    )
    async with world(KEYS_FILE=str(file)) as w, FakeEngine(Behaviour(slots=9)).serving() as engine:
        w.model("llama")
        w.model("qwen")
        w.model("llama-2", id="qwen", namespace="team")
        w.up(engine.port, "llama", parallel=9)

        async def status(key, model):
            answer = await w.ask(chat(model), Authorization=f"Bearer {key}")
            return answer.status, answer.json.get("error", {}).get("code")

        assert await status("sk-all", "llama") == (200, None)
        assert await status("sk-llama", "llama") == (200, None)
        assert await status("sk-llama", "default::qwen") == (403, "model_not_allowed")
        assert await status("sk-team", "llama") == (404, "model_not_found")
        listed = await w.get("/v1/models", X_Api_Key="sk-team")
        assert [row["id"] for row in listed.json["data"]] == ["qwen"]
        bodies = set()
        for path in ("/v1/models", "/v1/models/qwen", "/v1/nothing", "/slots"):
            answer = await w.get(path, Authorization="Bearer wrong")
            assert answer.status == 401
            bodies.add(answer.body)
        for how in ({}, {"Authorization": "Basic sk-all"}, {"Authorization": "Bearer sk-alL"}):
            answer = await w.ask(chat("llama"), **how)
            assert answer.status == 401
            bodies.add(answer.body)
        assert len(bodies) == 1
        assert (await w.get("/healthz")).status == 200
        assert not any("sk-" in str(line) for line in w.lines)


async def test_keys_are_read_again_and_a_broken_file_changes_nothing(tmp_path):
    file = tmp_path / "keys.yaml"
    async with world(KEYS_FILE=str(file)) as w:
        keys = w.gateway.proxy.keys
        assert (await w.get("/v1/models")).status == 200
        write_keys(file, {"name": "a", "key": "sk-a"})
        keys.read()
        assert (await w.get("/v1/models")).status == 401
        fresh = tmp_path / "fresh"
        write_keys(fresh, {"name": "b", "key": "sk-b"})
        os.replace(fresh, file)
        keys.read()
        assert (await w.get("/v1/models", Authorization="Bearer sk-b")).status == 200
        assert (await w.get("/v1/models", Authorization="Bearer sk-a")).status == 401
        for broken in ("keys: [{name: a}]", "keys: [", "keys: 7"):
            file.write_text(broken)
            keys.read()
            assert (await w.get("/v1/models", Authorization="Bearer sk-b")).status == 200
        file.unlink()
        keys.read()
        assert (await w.get("/v1/models")).status == 401


# -- figures --------------------------------------------------------------------------------------


async def test_each_request_has_one_log_line_with_the_engines_own_figures():
    async with world() as w, FakeEngine(Behaviour(tokens=5)).serving() as engine:
        w.model()
        w.up(engine.port)
        secret = "tell me about elephants"
        messages = [{"role": "user", "content": secret}]
        await w.ask(
            chat(messages=messages, stream=True, stream_options={"include_usage": True}),
            X_Request_Id="r-1",
        )
        await w.ask(chat(messages=messages))
        await until(lambda: len(w.lines) == 2, "two lines")
        streamed, whole = w.lines
        assert streamed["request"] == "r-1"
        assert (streamed["model"], streamed["status"], streamed["runner"]) == (
            "default/m",
            200,
            "r1",
        )
        for line in w.lines:
            assert (line["completion_tokens"], line["finish"]) == (5, "stop")
            assert line["prompt_tokens"] > 0
            assert line["total_s"] >= line["first_s"] >= line["queue_s"] >= 0
        assert streamed["events"] == 8
        assert streamed["tokens_per_s"] > 0
        assert whole["stream"] is False
        assert "elephant" not in str(w.lines)
        assert "word0" not in str(w.lines)


def samples(text: str) -> set[str]:
    """Every series of an exposition."""
    return {
        line.rsplit(" ", 1)[0] for line in text.splitlines() if line and not line.startswith("#")
    }


async def test_clients_cannot_make_series_and_deleted_models_end_theirs():
    async with world() as w, FakeEngine(Behaviour()).serving() as engine, w.client() as client:
        w.model()
        w.up(engine.port)

        async def ask(model):
            import json

            client.send(json.dumps(chat(model)).encode())
            return (await client.answer()).status

        assert await ask("m") == 200
        for model in ("x", None, 7, {}):
            await ask(model)
        before = samples((await w.get("/metrics")).body.decode())
        for number in range(300):
            assert await ask(f"{number}" * 30) == 404
        text = (await w.get("/metrics")).body.decode()
        assert samples(text) == before
        assert (
            'berth_gateway_requests_total{model="unknown",outcome="model_not_found"} 301.0' in text
        )
        assert 'berth_gateway_requests_total{model="default/m",outcome="200"} 1.0' in text
        assert 'berth_gateway_tokens_total{kind="completion",model="default/m"} 16.0' in text
        assert 'berth_gateway_requests_running{model="default/m"} 0.0' in text
        assert "berth_gateway_requests_open 0.0" in text
        w.down()
        w.catalog.drop_model("default/m")
        assert "default/m" not in (await w.get("/metrics")).body.decode()


async def test_health_counts():
    async with world() as w, FakeEngine(Behaviour()).serving() as engine:
        w.model()
        w.model("held", state=State.HELD)
        w.up(engine.port)
        await w.ask(chat())
        await w.ask(chat("held"))
        page = (await w.get("/health")).json
        assert (page["status"], page["served"], page["refused"], page["running"]) == ("ok", 1, 1, 0)


def test_the_log_is_written_by_a_thread_and_whole_at_the_end(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        writer = LineWriter(file)
        for number in range(50):
            writer.write(b"%d\n" % number)
        writer.close()
    assert (tmp_path / "log").read_text().split() == [str(n) for n in range(50)]


class Stuck:
    """A reader of the log that reads nothing until it is let go."""

    def __init__(self):
        self.go = threading.Event()
        self.size = 0

    def write(self, data):
        self.go.wait()
        self.size += len(data)

    def flush(self):
        pass


def test_a_reader_of_the_log_that_is_stuck_costs_lines_and_not_time():
    stuck = Stuck()
    writer = LineWriter(stuck)
    for _ in range(BACKLOG * 2):
        writer.write(b"x")
    stuck.go.set()
    writer.close()
    assert stuck.size <= BACKLOG + 1
