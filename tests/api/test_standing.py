"""Where do models stand that are wanted on certain places, or without anybody asking?"""

import asyncio
from typing import Any

from api.bay import GIB, Bay


def residency(bay: Bay, **spec: Any) -> None:
    """The policy of this bay's nodes."""
    bay.stack.plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Residency",
            "metadata": {"name": bay.name},
            "spec": {"nodeSelector": {"bay": bay.name}, **spec},
        }
    )


def seats(bay: Bay, model: str) -> list[tuple[str, int]]:
    """Node and device of each runner of a model that is up."""
    return sorted(
        (runner["spec"]["nodeName"].removeprefix(f"{bay.name}-"), device["index"])
        for runner in bay.runners()
        if runner["spec"]["modelRef"]["name"] == model
        and runner.get("status", {}).get("state") == "Up"
        for device in runner["spec"]["claim"]["devices"]
    )


async def test_a_model_on_every_device_answers_from_each_of_them(bay: Bay) -> None:
    bay.node("one", gpus="8Gi,8Gi")
    bay.node("two", gpus="8Gi,1Gi")
    model = bay.model("m", weights=2 * GIB, replicas="PerDevice", engine={"token_seconds": 0.1})
    assert (await bay.ask(model)).status_code == 200
    every = [("one", 0), ("one", 1), ("two", 0)]
    await bay.until("each device has one", lambda: seats(bay, model) == every, 60)
    answers = await asyncio.gather(*(bay.ask(model, max_tokens=16) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert max(answer.elapsed.total_seconds() for answer in answers) < 3.2, "one after the other"


async def test_a_pinned_model_stands_on_each_place_that_it_names_and_moves_with_them(
    bay: Bay,
) -> None:
    a, b = bay.node("a", gpus="8Gi,8Gi"), bay.node("b", gpus="8Gi")
    model = bay.model("m", weights=2 * GIB, residency="Pinned", pinTo=[f"{a}/cuda:1", b])
    await bay.until("both have it", lambda: seats(bay, model) == [("a", 1), ("b", 0)])
    bay.stack.plane.kubectl(
        "patch", "model", model, "-n", bay.name, "--type=merge",
        "-p", f'{{"spec": {{"pinTo": ["{a}/cuda:0", "{b}"]}}}}',
    )  # fmt: skip
    await bay.until("it has moved", lambda: seats(bay, model) == [("a", 0), ("b", 0)], 60)


async def test_a_device_is_kept_for_the_models_that_are_listed(bay: Bay) -> None:
    bay.node(gpus="8Gi,8Gi")
    residency(bay, gpu={"keep": [{"devices": ["0"], "models": [f"{bay.name}-main"]}]})
    one, two = bay.model("one", weights=5 * GIB), bay.model("two", weights=5 * GIB)
    main = bay.model("main", weights=5 * GIB, residency="Pinned")
    bay.wait(main, "Up")
    assert (await bay.ask(one)).status_code == 200
    assert (await bay.ask(two)).status_code == 200
    assert seats(bay, main) == [("n", 0)]
    assert seats(bay, two) == [("n", 1)]
    assert bay.pods_of(one) == []


async def test_everything_that_fits_is_loaded_in_order_and_again_when_room_comes_back(
    bay: Bay,
) -> None:
    bay.node(memory=16 * GIB)
    order = [f"{bay.name}-{name}" for name in ("main", "second", "first")]
    residency(bay, autoload=["Fit"], loadOrder=order)
    main = bay.model("main", weights=3 * GIB, minReplicas=1, engine={"load_seconds": 3})
    first = bay.model("first", weights=3 * GIB)
    second = bay.model("second", weights=3 * GIB)
    large = bay.model("large", weights=9 * GIB)
    for model in (first, second, large):
        bay.wait_needs(model)
    for model in (main, second, first):
        bay.wait(model, "Up", 60)
    begun = [pod.rsplit("-", 3)[0] for pod in bay.created_pods()]
    assert begun == [main, second, first]
    assert bay.state(large) == "Down"
    assert (await bay.ask(large)).status_code == 200
    assert {bay.state(model) for model in (first, second)} != {"Up"}
    bay.stack.plane.kubectl("delete", "model", large, "-n", bay.name)
    for model in (first, second):
        bay.wait(model, "Up", 60)


async def test_what_a_runner_took_is_kept_and_claimed_the_next_time(bay: Bay) -> None:
    """Also by a controller that was not there: the figure is in the Model's status."""
    bay.node()
    model = bay.model("m", engine={"host_share": 1.4})
    assert (await bay.ask(model)).status_code == 200
    need = bay.get(model)["status"]["needs"]["host"]
    measured = await asyncio.to_thread(
        bay.stack.wait, "it is noted", lambda: bay.get(model)["status"].get("measured")
    )
    (way,) = measured
    assert (way["device"], way["runs"][0]["host"]) == ("cpu", int(need * 1.4))
    bay.stack.plane.kill("controller")
    bay.stack.start_program("controller")
    bay.stack.plane.kubectl(
        "annotate", "model", model, "-n", bay.name, "berth.dev/unload-requested=1"
    )
    await bay.until("it is gone", lambda: not bay.pods_of(model))
    assert (await bay.ask(model)).status_code == 200
    assert bay.runners()[0]["spec"]["claim"]["host"] == int(need * 1.4)
