"""Does the fake engine behave like the engines that it stands for?"""

import asyncio

import httpx
import openai
import pytest

from fakes.engine import Behaviour, FakeEngine, FakeFleet

CHAT = "/v1/chat/completions"


async def until(what, condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail(f"waited 10 s for {what}")


async def read_stream(client, url, lines):
    """Append every line of a streamed answer as it comes."""
    async with client.stream("POST", url, json={"stream": True}) as answer:
        async for line in answer.aiter_lines():
            lines.append(line)


async def test_the_openai_client_understands_it():
    async with FakeEngine(Behaviour(tokens=3)).serving() as engine:
        client = openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none")
        said = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model="fake", messages=said)
        assert whole.choices[0].message.content == "word0 word1 word2 "
        assert whole.usage.completion_tokens == 3
        stream = await client.chat.completions.create(
            model="fake", messages=said, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        words = [
            c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content
        ]
        assert words == ["word0 ", "word1 ", "word2 "]
        assert chunks[-1].usage.completion_tokens == 3
        text = await client.completions.create(model="fake", prompt="x", max_tokens=2)
        assert text.choices[0].text == "word0 word1 "
        vectors = await client.embeddings.create(
            model="fake", input=["a", "bc"], encoding_format="float"
        )
        assert [row.embedding for row in vectors.data] == [[1.0, 0.5], [2.0, 0.5]]
        assert [m.id async for m in client.models.list()] == ["fake"]


async def test_loading_is_503_everywhere():
    async with FakeEngine(Behaviour(load_s=600)).serving() as engine, httpx.AsyncClient() as client:
        for path in ("/health", "/v1/models"):
            assert (await client.get(engine.url + path)).status_code == 503
        assert (await client.post(engine.url + CHAT, json={})).status_code == 503


async def test_requests_beyond_the_slots_are_deferred_and_a_client_that_leaves_frees_its_slot():
    async with (
        FakeEngine(Behaviour(token_s=3600)).serving() as engine,
        httpx.AsyncClient() as client,
    ):
        asked = [asyncio.create_task(client.post(engine.url + CHAT, json={})) for _ in range(3)]
        await until("three in hand", lambda: engine.in_flight == 3)
        assert engine.deferred == 2
        page = (await client.get(engine.url + "/metrics")).text
        assert "llamacpp:requests_processing 1" in page
        assert "llamacpp:requests_deferred 2" in page
        slots = (await client.get(engine.url + "/slots")).json()
        assert [slot["is_processing"] for slot in slots] == [True]
        for task in asked:
            task.cancel()
        await until("nothing in hand", lambda: engine.in_flight == 0)
        assert {seen.cancelled for seen in engine.requests} == {True}


async def test_a_crash_cuts_the_stream_without_done_and_then_nobody_listens():
    async with (
        FakeEngine(Behaviour(crash_after=2)).serving() as engine,
        httpx.AsyncClient() as client,
    ):
        lines = []
        with pytest.raises(httpx.RemoteProtocolError):
            await read_stream(client, engine.url + CHAT, lines)
        assert any("word1" in line for line in lines)
        assert "data: [DONE]" not in lines
        with pytest.raises(httpx.ConnectError):
            await client.get(engine.url + "/health")


async def test_a_fleet_is_another_engine_on_every_address():
    fleet = FakeFleet(Behaviour(model="small"))
    fleet.behaviours["127.9.0.2"] = Behaviour(model="large", slots=4)
    async with fleet.serving() as up, httpx.AsyncClient() as client:
        first, second = (f"http://127.9.0.{n}:{up.port}" for n in (1, 2))
        names = [
            (await client.get(f"{url}/v1/models")).json()["data"][0]["id"]
            for url in (first, second)
        ]
        assert names == ["small", "large"]
        assert len(fleet["127.9.0.2"].slots) == 4
        fleet.kill("127.9.0.1")
        with pytest.raises(httpx.TransportError):
            await client.get(f"{first}/health")
        assert (await client.get(f"{second}/health")).status_code == 200
        fleet.revive("127.9.0.1", Behaviour(load_s=600))
        assert (await client.get(f"{first}/health")).status_code == 503


async def test_a_crash_in_a_fleet_is_of_one_address():
    fleet = FakeFleet(Behaviour(crash_after=0))
    async with fleet.serving() as up, httpx.AsyncClient() as client:
        url = f"http://127.9.0.3:{up.port}"
        with pytest.raises(httpx.TransportError):
            await client.post(url + CHAT, json={"stream": True})
        with pytest.raises(httpx.TransportError):
            await client.get(url + "/health")
        assert (await client.get(f"http://127.9.0.4:{up.port}/health")).status_code == 200
