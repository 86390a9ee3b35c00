"""A request loads its model; requests that come meanwhile wait; what cannot be is refused with numbers."""

import asyncio
import time

from api.bay import GIB, Bay, words


async def test_needs_are_told_before_anything_is_downloaded(bay: Bay) -> None:
    model = bay.model("m", weights=2 * GIB)
    status = bay.wait_needs(model)["status"]
    needs = status["needs"]
    assert needs["weights"] > 2 * GIB
    assert needs["kvCache"] > 0
    assert "4096 tokens of context" in needs["text"]
    assert "weights" in needs["text"]
    assert "KV cache" in needs["text"]
    assert status["facts"]["architecture"] == "llama"
    assert status["observedGeneration"] == 1
    assert bay.created_pods() == []


async def test_a_hundred_first_requests_make_one_load_and_a_hundred_answers(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"load_seconds": 2}, profile={"parallel": 8})
    answers = await asyncio.gather(*(bay.ask(model) for _ in range(100)))
    assert [answer.status_code for answer in answers] == [200] * 100
    assert len(bay.created_pods()) == 1
    assert all(answer.json()["choices"][0]["message"]["content"] for answer in answers)


async def test_a_stream_gets_data_frames_while_its_model_loads(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"load_seconds": 13})
    began = time.monotonic()
    frames = await bay.stream(model)
    assert frames[-1] == "[DONE]"
    assert words(frames)
    keepalives = [
        frame
        for frame in frames
        if isinstance(frame, dict)
        and not any(c.get("delta", {}).get("content") for c in frame.get("choices", []))
    ]
    assert keepalives
    assert all(frame["object"] == "chat.completion.chunk" for frame in keepalives)
    assert time.monotonic() - began > 12


async def test_what_fits_nowhere_is_refused_at_once_and_nobody_is_stopped(bay: Bay) -> None:
    bay.node(memory=16 * GIB)
    small = bay.model("small", weights=2 * GIB)
    assert (await bay.ask(small)).status_code == 200
    large = bay.model("large", weights=40 * GIB)
    bay.wait_needs(large)
    began = time.monotonic()
    answer = await bay.ask(large)
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert error["code"] == "insufficient_capacity"
    assert "GiB" in error["message"]
    assert "Retry-After" not in answer.headers
    assert time.monotonic() - began < 10
    assert bay.state(small) == "Up"
    refusal = bay.get(large)["status"]["lastRefusal"]
    assert refusal["places"][0]["need"] > refusal["places"][0]["capacity"]


async def test_an_undeclared_model_is_not_found(bay: Bay) -> None:
    answer = await bay.ask(f"{bay.name}-nobody")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_a_model_list_loads_nothing_and_names_every_model(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    bay.wait_needs(model)
    async with bay.client() as client:
        listed = (await client.get("/v1/models")).json()["data"]
        one = await client.get(f"/v1/models/{model}")
    assert model in [entry["id"] for entry in listed]
    assert one.json()["id"] == model
    assert bay.runners() == []
