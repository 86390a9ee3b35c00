"""What does one look at an engine show? Pages of real engines, and a fake engine over real HTTP."""

import asyncio

import httpx
import pytest

from berth.agent.health import Counters, Look
from berth.agent.probe import (
    HttpProbe,
    Target,
    combine,
    read_metrics,
    read_slots,
    target_of,
)
from berth.api.runner import RunnerSpec
from berth.runtimes.base import Counters as MetricNames
from berth.runtimes.registry import registry
from fakes.engine import Behaviour, FakeEngine

LLAMA = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 17
llamacpp:tokens_predicted_total 64
llamacpp:prompt_tokens_seconds 12.5
llamacpp:n_decode_total 66
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
"""
VLLM = """\
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="0",model_name="m"} 5e+01
vllm:request_success_total{finished_reason="stop",model_name="m"} 7.0
vllm:request_success_total{finished_reason="length",model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} NaN
"""
SLOTS = """[
 {"id": 0, "id_task": 5, "is_processing": true, "n_prompt_tokens_processed": 512, "next_token": [{"n_decoded": 42}]},
 {"id": 1, "id_task": 3, "is_processing": false, "next_token": {"n_decoded": 9}},
 {"id": 2, "is_processing": false}
]"""
COUNTERS = {name: one.traits.counters for name, one in registry().runtimes.items()}
LLAMACPP = COUNTERS["llamacpp"]
OK, LOADING, SILENT = (200, '{"status":"ok"}'), (503, '{"error":{}}'), (0, "")


def look(runtime: str, health=OK, metrics: str = "", slots: str = "") -> Look:
    return combine(health, COUNTERS[runtime], read_metrics(metrics), slots)


def test_llamacpp():
    assert look("llamacpp", metrics=LLAMA, slots=SLOTS) == Look(
        healthy=True,
        busy=3,
        progress={
            "llamacpp:prompt_tokens_total": 17,
            "llamacpp:tokens_predicted_total": 64,
            "llamacpp:n_decode_total": 66,
            "tasks": 5,
            "read": 512,
            "written": 42,
        },
        counters=Counters(served=0, prompt_tokens=17, tokens=64),
    )


def test_vllm_sums_over_its_engines():
    found = look("vllm", metrics=VLLM)
    assert (found.busy, found.counters) == (3, Counters(served=8, prompt_tokens=100, tokens=50))


def test_llamacpp_without_metrics_tells_by_its_slots():
    found = look("llamacpp", slots=SLOTS)
    assert (found.busy, found.progress, found.counters) == (
        1,
        {"tasks": 5, "read": 512, "written": 42},
        None,
    )


def test_a_loading_engine_has_nothing_in_hand():
    assert look("llamacpp", LOADING) == Look(healthy=False, loading=True, busy=0)


def test_one_that_does_not_answer_says_nothing():
    assert look("llamacpp", SILENT) == Look(healthy=False, loading=True)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[{}]", "null", '[{"is_processing":', '"x"'])
def test_slots_that_are_none(text: str):
    assert read_slots(text) is None or read_slots(text) == []


@pytest.mark.parametrize("text", ["", "x", "a b c", "llamacpp:x NaN", "llamacpp:x +Inf", "\0"])
def test_metrics_that_are_none(text: str):
    assert read_metrics(text) == {}


def test_ipv6():
    assert Target("fd00::1", 8080).url == "http://[fd00::1]:8080"


@pytest.fixture
async def probe():
    found = HttpProbe()
    yield found
    await found.close()


@pytest.mark.parametrize("kind", ["llamacpp", "vllm"])
async def test_against_an_engine_that_works(probe: HttpProbe, kind: str):
    behaviour = Behaviour(kind=kind, tokens=10_000, token_s=0.005)
    async with FakeEngine(behaviour).serving() as engine, httpx.AsyncClient() as client:
        target = Target("127.0.0.1", engine.port, COUNTERS[kind])
        idle = await probe(target)
        assert (idle.healthy, idle.busy) == (True, 0)
        body = {"messages": [], "stream": True}
        async with client.stream("POST", f"{engine.url}/v1/chat/completions", json=body) as answer:
            chunks = answer.aiter_bytes()
            await anext(chunks)
            first = await probe(target)
            async with asyncio.timeout(10):
                while (second := await probe(target)).progress == first.progress:
                    pass
        assert (first.busy, second.busy) == (1, 1)


async def test_against_one_that_loads_one_that_is_away_and_one_that_hangs(probe: HttpProbe):
    async with FakeEngine(Behaviour(load_s=60)).serving() as engine:
        assert await probe(Target("127.0.0.1", engine.port, LLAMACPP)) == Look(
            False, loading=True, busy=0
        )
        port = engine.port
    assert await probe(Target("127.0.0.1", port)) == Look(False, loading=True)
    client = httpx.AsyncClient(timeout=0.2)
    async with FakeEngine(Behaviour(health_hangs=True)).serving() as engine:
        found = await HttpProbe(client)(Target("127.0.0.1", engine.port, LLAMACPP))
        assert (found.healthy, found.busy) == (False, 0)
    await client.aclose()


async def test_an_unknown_runtime_is_only_asked_for_its_health(probe: HttpProbe):
    async with FakeEngine().serving() as engine:
        found = await probe(Target("127.0.0.1", engine.port))
    assert found == Look(healthy=True)


@pytest.mark.parametrize("runtime", ["llamacpp", "vllm", "sglang"])
def test_a_runner_of_an_older_controller_is_looked_at_by_the_name_of_its_runtime(runtime: str):
    spec = RunnerSpec.model_validate(
        {"modelRef": {"name": "m", "uid": "u"}, "nodeName": "a", "runtime": runtime}
    )
    assert target_of("1.2.3.4", spec) == Target("1.2.3.4", 8080, COUNTERS[runtime])


def test_a_runner_says_itself_how_its_engine_is_looked_at():
    metrics = {"path": "/stats", "busy": ["in_hand"], "tokens": "written"}
    spec = RunnerSpec.model_validate(
        {
            "modelRef": {"name": "m", "uid": "u"},
            "nodeName": "a",
            "runtime": "of a plugin",
            "engine": {"healthPath": "/ready", "metrics": metrics},
        }
    )
    counters = MetricNames(busy=("in_hand",), prompt_tokens="", tokens="written", path="/stats")
    assert target_of("1.2.3.4", spec) == Target("1.2.3.4", 8080, counters, "/ready")


async def test_versions_are_asked_of_the_runner_program(probe: HttpProbe):
    async with FakeEngine().serving() as engine:
        assert await probe.versions("127.0.0.1", engine.port) == {}
