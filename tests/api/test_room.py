"""Who makes room for whom? Idle runners, least recently used first; busy, loading and pinned ones never."""

import asyncio

from api.bay import GIB, Bay, words

NODE = 16 * GIB
HALF = 8 * GIB
"""Two of these do not fit a node of 16 GiB beside its reserve."""


async def test_an_idle_model_goes_and_comes_back_on_request(bay: Bay) -> None:
    bay.node(memory=NODE)
    one, two = bay.model("one", weights=HALF), bay.model("two", weights=HALF)
    assert (await bay.ask(one)).status_code == 200
    assert (await bay.ask(two)).status_code == 200
    assert bay.state(two) == "Up"
    assert bay.pods_of(one) == []
    assert (await bay.ask(one)).status_code == 200
    assert bay.pods_of(two) == []


async def test_the_least_recently_used_goes_first(bay: Bay) -> None:
    bay.node(memory=NODE)
    old = bay.model("old", weights=4 * GIB)
    young = bay.model("young", weights=4 * GIB)
    new = bay.model("new", weights=5 * GIB)
    assert (await bay.ask(old)).status_code == 200
    assert (await bay.ask(young)).status_code == 200
    assert (await bay.ask(new)).status_code == 200
    assert bay.pods_of(old) == []
    assert bay.state(young) == "Up"


async def test_a_busy_model_is_never_stopped(bay: Bay) -> None:
    bay.node(memory=NODE)
    engine = {"tokens": 60, "token_seconds": 0.1}
    one = bay.model("one", weights=HALF, engine=engine)
    two = bay.model("two", weights=HALF)
    assert (await bay.ask(one, max_tokens=1)).status_code == 200
    stream = asyncio.create_task(bay.stream(one))
    await asyncio.sleep(0.5)
    other = asyncio.create_task(bay.ask(two))
    frames = await stream
    assert frames[-1] == "[DONE]"
    assert len(words(frames).split()) == 60
    assert (await other).status_code == 200


async def test_a_loading_model_is_not_stopped_for_another(bay: Bay) -> None:
    bay.node(memory=NODE)
    one = bay.model("one", weights=HALF, engine={"load_seconds": 3})
    two = bay.model("two", weights=HALF)
    first = asyncio.create_task(bay.ask(one))
    await asyncio.sleep(1)
    second = asyncio.create_task(bay.ask(two))
    assert (await first).status_code == 200
    assert (await second).status_code == 200
    assert len(bay.created_pods()) == 2


async def test_pinned_models_are_never_stopped(bay: Bay) -> None:
    bay.node(memory=NODE)
    pinned = bay.model("pinned", weights=HALF, residency="Pinned")
    bay.wait(pinned, "Up")
    other = bay.model("other", weights=HALF)
    answer = await bay.ask(other)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_evictable_model"
    assert bay.state(pinned) == "Up"


async def test_the_cap_on_loaded_models_makes_the_oldest_go(bay: Bay) -> None:
    bay.node()
    bay.stack.plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Residency",
            "metadata": {"name": bay.name},
            "spec": {"nodeSelector": {"bay": bay.name}, "maxRunners": 1},
        }
    )
    one, two = bay.model("one"), bay.model("two")
    assert (await bay.ask(one)).status_code == 200
    assert (await bay.ask(two)).status_code == 200
    assert bay.pods_of(one) == []
    bay.stack.plane.kubectl("delete", "residency", bay.name)


async def test_a_model_goes_to_a_gpu_that_holds_it(bay: Bay) -> None:
    bay.node("cpu")
    bay.node("gpu", gpus="8Gi,24Gi")
    model = bay.model("m", weights=12 * GIB)
    assert (await bay.ask(model)).status_code == 200
    runner = bay.runners()[0]
    assert runner["spec"]["nodeName"] == f"{bay.name}-gpu"
    assert [device["index"] for device in runner["spec"]["claim"]["devices"]] == [1]


async def test_a_busy_gpu_means_waiting_and_never_the_cpu(bay: Bay) -> None:
    bay.node("cpu")
    bay.node("gpu", gpus="16Gi")
    busy = bay.model("busy", weights=HALF, engine={"tokens": 40, "token_seconds": 0.1})
    other = bay.model("other", weights=HALF)
    stream = asyncio.create_task(bay.stream(busy))
    await bay.until("it is up", lambda: bay.state(busy) == "Up")
    assert (await bay.ask(other)).status_code == 200
    assert (await stream)[-1] == "[DONE]"
    places = {r["spec"]["nodeName"] for r in bay.runners()}
    assert places == {f"{bay.name}-gpu"}


async def test_a_device_that_nobody_offers_is_refused_at_once(bay: Bay) -> None:
    bay.node("gpu", gpus="16Gi")
    for name, device, code in (
        ("index", "cuda:3", "no_matching_device"),
        ("uuid", "GPU-00000000-0000", "no_matching_device"),
        ("host", "cpu", "cpu_runners_not_allowed"),
    ):
        model = bay.model(name, device=device)
        bay.wait_needs(model)
        answer = await bay.ask(model)
        assert answer.status_code == 503
        assert "Retry-After" not in answer.headers
        assert answer.json()["error"]["code"] == code


async def test_one_of_several_devices_is_taken_and_the_policy_says_which(bay: Bay) -> None:
    bay.node(gpus="16Gi,16Gi,16Gi")
    bay.stack.plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Residency",
            "metadata": {"name": bay.name},
            "spec": {"nodeSelector": {"bay": bay.name}, "gpu": {"devices": ["1"]}},
        }
    )
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    (runner,) = bay.runners()
    assert [device["index"] for device in runner["spec"]["claim"]["devices"]] == [1]
