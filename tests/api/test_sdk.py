"""The OpenAI Python SDK works against the gateway: cold and warm, chat, completions, embeddings, errors."""

import openai
import pytest

from api.bay import GIB, Bay


def _client(bay: Bay) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{bay.stack.endpoint}/v1", api_key="none", max_retries=0)


async def test_chat_without_and_with_a_stream(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"load_seconds": 1})
    async with _client(bay) as client:
        messages = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(model=model, messages=messages)
        assert whole.choices[0].message.content
        stream = await client.chat.completions.create(model=model, messages=messages, stream=True)
        text = ""
        async for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        assert text


async def test_a_stream_from_cold_survives_the_keepalives(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"load_seconds": 12})
    async with _client(bay) as client:
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hello"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


async def test_completions_embeddings_and_the_list(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    async with _client(bay) as client:
        assert (await client.completions.create(model=model, prompt="hello")).choices[0].text
        embedded = await client.embeddings.create(model=model, input=["a", "b"])
        assert len(embedded.data) == 2
        assert model in [entry.id async for entry in client.models.list()]


async def test_errors_are_the_sdks_own_classes(bay: Bay) -> None:
    bay.node(memory=16 * GIB)
    model = bay.model("m", weights=60 * GIB)
    bay.wait_needs(model)
    async with _client(bay) as client:
        messages = [{"role": "user", "content": "hello"}]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nobody", messages=messages)
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model=model, messages=messages)
    assert caught.value.status_code == 503
    assert caught.value.body["code"] == "insufficient_capacity"
