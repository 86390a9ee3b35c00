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


def tokens(runner: dict[str, Any]) -> str:
    """The context that a runner was started with."""
    command = runner["spec"]["command"]
    return str(command[command.index("-c") + 1])


def context(bay: Bay, model: str) -> list[str]:
    """The context that each runner which is up was started with."""
    return [
        tokens(runner)
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


# Something dies in the middle.


def _fetching(bay: Bay, model: str) -> bool:
    return len(bay.runners()) == 2 or not bay.pods_of(model)


def _draining(bay: Bay, model: str) -> bool:
    return any(runner["spec"].get("drain") for runner in bay.runners())


def _between(bay: Bay, model: str) -> bool:
    """The old one's Runner is gone, the new one has no pod that is up."""
    return [runner.get("status", {}).get("state") for runner in bay.runners()] != ["Up"] and (
        len(bay.runners()) == 1
    )


def _starting(bay: Bay, model: str) -> bool:
    return any(r.get("status", {}).get("state") == "Starting" for r in bay.runners())


def _gone(bay: Bay, model: str) -> bool:
    return bool(bay.condition(model, "Switching"))


STEPS = {
    "asked for": _gone,
    "placed": _fetching,
    "draining": _draining,
    "old one gone": _between,
    "starting": _starting,
}
OUTCOMES = [pytest.param(False, id="that works"), pytest.param(True, id="that fails")]


@pytest.mark.parametrize("fails", OUTCOMES)
@pytest.mark.parametrize("step", STEPS)
async def test_the_controller_killed_at_each_step_of_a_switch(
    bay: Bay, step: str, fails: bool
) -> None:
    bay.node(memory=NODE)
    model = loaded(bay, weights=HALF)
    smoke = {"smokeTest": WRONG} if fails else {}
    profile(bay, engine={"load_seconds": 2}, contextLength=2048, **smoke)
    await bay.until(f"the switch is at its step: {step}", lambda: STEPS[step](bay, model))
    bay.stack.plane.kill("controller")
    await asyncio.sleep(1)
    bay.stack.start_program("controller")
    await asyncio.to_thread(ends_with, bay, model, "4096" if fails else "2048", 120)
    # The old one's, the trial's, and where that failed the old one's again: nothing is tried twice.
    assert len(bay.created_pods()) == (3 if fails else 2)
    assert (await bay.ask(model)).status_code == 200


@pytest.mark.long
@pytest.mark.parametrize("fails", OUTCOMES)
@pytest.mark.parametrize("step", ["placed", "draining", "starting"])
async def test_the_agent_away_for_a_while_at_each_step_of_a_switch(
    bay: Bay, step: str, fails: bool
) -> None:
    node = bay.node(memory=NODE)
    model = loaded(bay, weights=HALF)
    smoke = {"smokeTest": WRONG} if fails else {}
    profile(bay, engine={"load_seconds": 2}, contextLength=2048, **smoke)
    await bay.until(f"the switch is at its step: {step}", lambda: STEPS[step](bay, model))
    bay.stack.fault(f"agent/{node}?run=false")
    await asyncio.sleep(3)
    bay.stack.fault(f"agent/{node}?run=true")
    await asyncio.to_thread(ends_with, bay, model, "4096" if fails else "2048", 120)
    assert (await bay.ask(model)).status_code == 200


async def test_an_engine_killed_on_trial_brings_back_what_was_good(bay: Bay) -> None:
    bay.node(memory=NODE)
    model = loaded(bay, weights=HALF)
    profile(bay, engine={"load_seconds": 30}, contextLength=2048)
    await bay.until("the trial starts", lambda: _starting(bay, model))
    pod = bay.pods_of(model)[0]
    await bay.until("it is played", lambda: _kill(bay, pod))
    await asyncio.to_thread(ends_with, bay, model, "4096")
    assert bay.condition(model, "RolledBack")["reason"] == "CrashLoop"


def _kill(bay: Bay, pod: str) -> bool:
    try:
        bay.stack.fault(f"kill/{bay.name}/{pod}")
    except OSError:
        return False
    return True


@pytest.mark.timeout(240)
async def test_a_node_lost_on_trial_ends_with_a_profile_that_serves(bay: Bay) -> None:
    bay.node("a", memory=NODE)
    model = loaded(bay, weights=HALF)
    bay.node("b", memory=NODE)
    profile(bay, engine={"load_seconds": 30}, contextLength=2048)
    await bay.until("the trial starts", lambda: _starting(bay, model))
    trial = next(r for r in bay.runners() if r.get("status", {}).get("state") == "Starting")
    bay.stack.plane.kubectl("delete", "node", trial["spec"]["nodeName"], "--wait=false")
    bay.nodes.remove(trial["spec"]["nodeName"])
    await asyncio.to_thread(ends_with, bay, model, "4096", 150)
    assert bay.condition(model, "RolledBack")["status"] == "True"
    assert (await bay.ask(model)).status_code == 200


# Many models, and changes that change nothing.


@pytest.mark.long
@pytest.mark.timeout(500)
async def test_h7_a_profile_of_twenty_models_changes_them_one_after_the_other(bay: Bay) -> None:
    bay.node(memory=64 * GIB)
    profile(bay)
    names = [declared(bay, f"m{index:02d}") for index in range(20)]
    for name in names:
        bay.wait(name, "Up", 120)
    profile(bay, contextLength=2048)
    most = 0

    def is_done() -> bool:
        nonlocal most
        runners = bay.runners()
        new = [r for r in runners if tokens(r) == "2048"]
        # Files are fetched for all at once, which touches nobody; a place is taken by one at a time.
        placed = [r for r in new if r["spec"]["stage"] == "Reserved"]
        most = max(most, sum(r.get("status", {}).get("state") != "Up" for r in placed))
        return len(runners) == len(new) == 20 and all(
            r.get("status", {}).get("state") == "Up" for r in new
        )

    await bay.until("all of them have the new settings", is_done, 300)
    assert most == 1
    assert len(bay.created_pods()) == 40


async def test_o14_what_changes_nothing_restarts_nothing(bay: Bay) -> None:
    bay.node()
    profile(bay, env=[{"name": "B", "value": "2"}, {"name": "A", "value": "1"}])
    model = declared(bay)
    bay.wait(model, "Up")
    settled(bay, model)
    pods = bay.pods_of(model)
    # Another order of the same; settings of how it is watched; a label on its pod from elsewhere.
    profile(bay, env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    await asyncio.sleep(1)
    profile(bay, env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], hangTimeout="200s")
    bay.stack.plane.kubectl("label", "pod", pods[0], "-n", bay.name, "team=x")
    bay.stack.plane.kill("controller")
    # The next release has another image and another context where nobody says.
    images = {"BERTH_RUNNER_IMAGES": "llamacpp/cpu=fake/llamacpp:next"}
    bay.stack.start_program("controller", env={**images, "BERTH_CONTEXT_LENGTH": "8192"})
    await asyncio.sleep(5)
    assert bay.pods_of(model) == pods
    assert not bay.condition(model, "Switching")
    bay.stack.plane.kill("controller")
    bay.stack.start_program("controller")
