"""Do real clients survive every situation? OpenAI's own SDK against a cold, held, failing and dying model."""

import asyncio

import openai
import pytest

from berth.gateway.catalog import Refusal
from berth.reasons import Reason, State
from fakes.engine import Behaviour, FakeEngine
from gateway.world import until, world

MESSAGES = [{"role": "user", "content": "hi"}]


def sdk(w, **options) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{w.port}/v1", api_key="sk-x", **options)


async def text_of(stream) -> str:
    return "".join(
        [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    )


async def test_everything_works_on_a_model_that_is_up():
    async with world() as w, FakeEngine(Behaviour(tokens=3)).serving() as engine, sdk(w) as client:
        w.model()
        w.up(engine.port)
        chat = client.chat.completions
        whole = await chat.create(model="m", messages=MESSAGES)
        assert whole.choices[0].message.content == "word0 word1 word2 "
        assert whole.usage.completion_tokens == 3
        stream = await chat.create(model="m", messages=MESSAGES, stream=True)
        assert await text_of(stream) == "word0 word1 word2 "
        completion = await client.completions.create(model="m", prompt="hi")
        assert completion.choices[0].text == "word0 word1 word2 "
        embeddings = await client.embeddings.create(model="m", input=["a", "bc"])
        assert [len(row.embedding) for row in embeddings.data] == [2, 2]
        assert [model.id async for model in client.models.list()] == ["m"]
        assert (await client.models.retrieve("m")).id == "m"


async def test_a_cold_model_is_waited_for_with_and_without_a_stream():
    async with (
        world() as w,
        FakeEngine(Behaviour(tokens=2, slots=2)).serving() as engine,
        sdk(w) as client,
    ):
        w.model()
        chat = client.chat.completions
        stream = await chat.create(model="m", messages=MESSAGES, stream=True)
        whole = asyncio.ensure_future(chat.create(model="m", messages=MESSAGES))
        await until(lambda: w.waiting == 2, "both in line")
        w.up(engine.port, parallel=2)
        assert await text_of(stream) == "word0 word1 "
        assert (await whole).choices[0].message.content == "word0 word1 "


async def test_a_load_that_fails_is_an_api_error_in_the_stream():
    async with world() as w, sdk(w) as client:
        w.model()
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        w.change(state=State.FAILED, message="no such image")
        with pytest.raises(openai.APIError, match="no such image") as caught:
            await text_of(stream)
        assert caught.value.code == "model_failed"


async def test_a_final_refusal_is_raised_at_once_and_not_asked_for_again():
    async with world() as w, sdk(w, max_retries=2) as client:
        w.model(state=State.WAITING, refusal=Refusal(Reason.NEVER_FITS, "needs 100 GiB"))
        with pytest.raises(openai.InternalServerError, match="needs 100 GiB") as caught:
            await client.chat.completions.create(model="m", messages=MESSAGES)
        assert caught.value.code == "insufficient_capacity"
        await until(lambda: w.lines, "the log line")
        assert len(w.lines) == 1


async def test_a_held_model_tells_when_to_come_back():
    async with world() as w, sdk(w, max_retries=0) as client:
        w.model(state=State.HELD, load_seconds=(12,))
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="m", messages=MESSAGES)
        assert caught.value.response.headers["retry-after"] == "12"
        assert caught.value.body["berth"]["state"] == "Held"


async def test_an_unknown_model_is_not_found():
    async with world() as w, sdk(w) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="nobody", messages=MESSAGES)
        assert caught.value.code == "model_not_found"


async def test_a_runner_that_dies_in_an_answer_is_an_error_and_never_a_short_answer():
    behaviour = Behaviour(tokens=8, token_s=0.02, crash_after=3)
    async with world() as w, FakeEngine(behaviour).serving() as engine, sdk(w) as client:
        w.model()
        w.up(engine.port)
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError) as caught:
            await text_of(stream)
        assert caught.value.code == "runner_died"


async def test_a_runner_that_dies_before_its_answer_is_not_noticed():
    async with (
        world() as w,
        FakeEngine(Behaviour(crash_after=0)).serving() as dying,
        FakeEngine(Behaviour(tokens=2)).serving() as engine,
        sdk(w, max_retries=0) as client,
    ):
        w.model()
        w.up(dying.port, runner="dying")
        asked = asyncio.ensure_future(client.chat.completions.create(model="m", messages=MESSAGES))
        await until(lambda: w.waiting == 1, "put back")
        w.down(runner="dying")
        w.up(engine.port, runner="next")
        assert (await asked).choices[0].message.content == "word0 word1 "
