"""Does a change of settings always end with a profile that serves: the new one, or the old?"""

import asyncio
from typing import Any

import pytest

from api.bay import GIB, Bay

NODE = 16 * GIB
HALF = 8 * GIB
"""Two of these do not fit a node of 16 GiB beside its reserve: the old one stops first."""
WRONG = {"prompt": "What is the capital of France?", "expect": "Paris"}
"""A smoke test that the played engine fails: it says word0, word1 …"""


def profile(bay: Bay, name: str = "p", *, engine: dict[str, Any] | None = None, **spec: Any) -> str:
    """Declare or change a profile of this bay; ``engine``: FAKE_… values of the played engine."""
    env = [{"name": f"FAKE_{k.upper()}", "value": str(v)} for k, v in (engine or {}).items()]
    bay.stack.plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Profile",
            "metadata": {"name": name, "namespace": bay.name},
            "spec": {"env": env, **spec},
        }
    )
    return name


def declared(bay: Bay, name: str = "m", *, weights: int = GIB, **spec: Any) -> str:
    """A model with profile ``p`` that is kept up."""
    source = {"url": {"uri": bay.file(name, weights=weights)}}
    more = {"nodeSelector": {"bay": bay.name}, "profile": "p", "minReplicas": 1}
    bay.apply_model(name, {"source": source, **more, **spec})
    return f"{bay.name}-{name}"


def loaded(bay: Bay, *, weights: int = GIB, **spec: Any) -> str:
    """Such a model, up."""
    profile(bay, engine={"load_seconds": 1})
    model = declared(bay, weights=weights, **spec)
    bay.wait(model, "Up")
    settled(bay, model)
    return model


def settled(bay: Bay, model: str) -> dict[str, Any]:
    """The status once it says what was good."""
    return dict(
        bay.stack.wait(
            f"{model} has settings that are good",
            lambda: bay.get(model)["status"] if bay.get(model)["status"].get("lastGood") else None,
        )
    )


def context(bay: Bay, model: str) -> list[str]:
    """The context that each runner which is up was started with."""
    return [
        runner["spec"]["command"][runner["spec"]["command"].index("-c") + 1]
        for runner in bay.runners()
        if runner["spec"]["modelRef"]["name"] == model
        and runner.get("status", {}).get("state") == "Up"
    ]


def ends_with(bay: Bay, model: str, tokens: str, deadline_s: float = 60.0) -> None:
    """Wait until the model serves with this context, alone, and nothing of a change is left open."""

    def is_so() -> bool:
        condition = bay.condition(model, "Switching")
        done = condition.get("status") == "False" and bay.state(model) == "Up"
        return done and context(bay, model) == [tokens] and len(bay.pods_of(model)) == 1

    bay.stack.wait(f"{model} serves with {tokens} tokens", is_so, deadline_s)


def events(bay: Bay, model: str) -> list[str]:
    """The reasons of the model's Events, eldest first."""
    found = [e for e in bay.stack.every("events", bay.name) if e["involvedObject"]["name"] == model]
    return [
        e["reason"] for e in sorted(found, key=lambda e: e.get("eventTime") or e["firstTimestamp"])
    ]


async def test_with_room_for_both_the_new_one_is_up_before_the_old_one_goes(bay: Bay) -> None:
    bay.node()
    model = loaded(bay)
    profile(bay, engine={"load_seconds": 1}, contextLength=2048)
    seen: set[int] = set()

    def is_done() -> bool:
        seen.add(len(context(bay, model)))
        return context(bay, model) == ["2048"]

    await bay.until("the new settings serve alone", is_done, 60)
    assert 0 not in seen
    await asyncio.to_thread(ends_with, bay, model, "2048")
    assert len(bay.created_pods()) == 2
    status = bay.get(model)["status"]
    assert (status["activeProfile"], status["contextLength"]) == ("p", 2048)
    assert "trial" not in status
    assert {"Switching", "Switched"} <= set(events(bay, model))


async def test_h1_on_a_full_node_one_new_pod_is_made_once_the_old_one_is_gone(bay: Bay) -> None:
    bay.node(memory=NODE)
    model = loaded(bay, weights=HALF)
    profile(bay, engine={"load_seconds": 1}, contextLength=2048)
    await asyncio.to_thread(ends_with, bay, model, "2048")
    assert len(bay.created_pods()) == 2


@pytest.mark.parametrize("weights", [GIB, HALF], ids=["room for both", "room for one"])
async def test_a_failed_smoke_test_ends_with_the_old_profile(bay: Bay, weights: int) -> None:
    bay.node(memory=NODE)
    model = loaded(bay, weights=weights)
    profile(bay, "next", smokeTest=WRONG, contextLength=2048)
    bay.stack.plane.kubectl(
        "patch", "model", model, "-n", bay.name, "--type=merge", "-p", '{"spec":{"profile":"next"}}'
    )
    await bay.until("it is rolled back", lambda: bay.condition(model, "RolledBack"), 60)
    await asyncio.to_thread(ends_with, bay, model, "4096")
    condition = bay.condition(model, "RolledBack")
    assert (condition["status"], condition["reason"]) == ("True", "SmokeTestFailed")
    assert "does not contain 'Paris'" in condition["message"]
    status = bay.get(model)["status"]
    assert (status["activeProfile"], status["trial"]["profile"]) == ("p", "next")
    assert (await bay.ask(model)).status_code == 200
    assert "RolledBack" in events(bay, model)
    # Never again until it changes, and then at once.
    pods = len(bay.created_pods())
    await asyncio.sleep(3)
    assert len(bay.created_pods()) == pods == (2 if weights == GIB else 3)
    profile(bay, "next", contextLength=2048)
    await asyncio.sleep(1)
    profile(bay, "next", contextLength=1024)
    await asyncio.to_thread(ends_with, bay, model, "1024")
    status = bay.get(model)["status"]
    assert (status["activeProfile"], status["previousProfile"]) == ("next", "p")


async def test_a_profile_changed_in_place_goes_back_to_what_it_was(bay: Bay) -> None:
    bay.node(memory=NODE)
    model = loaded(bay, weights=HALF)
    profile(bay, engine={"exit_code": 1}, contextLength=2048)
    await bay.until("it is rolled back", lambda: bay.condition(model, "RolledBack"), 60)
    await asyncio.to_thread(ends_with, bay, model, "4096")
    assert (await bay.ask(model)).status_code == 200


async def test_settings_that_cannot_be_are_refused_and_touch_nobody(bay: Bay) -> None:
    bay.node()
    model = loaded(bay)
    profile(bay, maxContextLength=2048)
    bay.stack.plane.kubectl(
        "patch", "model", model, "-n", bay.name, "--type=merge",
        "-p", '{"spec":{"overrides":{"contextLength":8192}}}',
    )  # fmt: skip
    await bay.until(
        "it is refused",
        lambda: bay.condition(model, "Switching").get("reason") == "ContextTooLong",
    )
    message = bay.condition(model, "Switching")["message"]
    assert "8192" in message
    assert "2048" in message
    # Its engine dies: what was good comes back, not what was refused.
    pod = bay.pods_of(model)[0]
    bay.stack.fault(f"kill/{bay.name}/{pod}")
    await bay.until("it is started again", lambda: bay.pods_of(model) not in ([], [pod]), 60)
    bay.wait(model, "Up", 60)
    assert context(bay, model) == ["4096"]
    assert (await bay.ask(model)).status_code == 200
