"""What dies, and when: engines, controllers, gateways, agents, the API server."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from api.bay import GIB, Bay, chat, words

NODE = 16 * GIB


async def _streaming(bay: Bay, model: str) -> asyncio.Task[Any]:
    """A stream whose first words have arrived."""
    assert (await bay.ask(model, max_tokens=1)).status_code == 200
    task = asyncio.create_task(bay.stream(model))
    await asyncio.sleep(0.6)
    return task


def _kill_engine(bay: Bay, model: str, **how: str) -> None:
    pod = bay.pods_of(model)[0]
    query = "&".join(f"{key}={value}" for key, value in how.items())
    bay.stack.fault(f"kill/{bay.name}/{pod}?{query}")


async def test_an_engine_killed_while_idle_is_started_again_when_asked(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    await asyncio.to_thread(_kill_engine, bay, model)
    await bay.until("it is not up any more", lambda: bay.state(model) != "Up")
    assert (await bay.ask(model)).status_code == 200


async def test_an_engine_killed_while_streaming_ends_with_an_error_event(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"tokens": 100, "token_seconds": 0.1})
    stream = await _streaming(bay, model)
    await asyncio.to_thread(_kill_engine, bay, model)
    frames = await stream
    assert "error" in frames[-1]
    assert "[DONE]" not in frames
    assert (await bay.ask(model, max_tokens=1)).status_code == 200


async def test_an_engine_killed_while_loading_is_loaded_again_for_who_waits(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"load_seconds": 2})
    answer = asyncio.create_task(bay.ask(model))
    await bay.until("its pod runs", lambda: bay.pods_of(model))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(_kill_engine, bay, model)
    assert (await answer).status_code == 200


async def test_an_engine_that_always_crashes_backs_off_and_says_so(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"exit_code": 1})
    async with bay.client() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=chat(model), timeout=8)
    status = bay.get(model)["status"]
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "False"
    assert status["restarts"] >= 2
    # 1 + 2 + 4 … seconds of pause bound how often it can have been started.
    assert 2 <= len(bay.created_pods()) <= 5


async def test_a_controller_killed_while_a_model_loads_changes_nothing(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"load_seconds": 3})
    answer = asyncio.create_task(bay.ask(model))
    await bay.until("its pod exists", lambda: bay.pods_of(model))
    bay.stack.plane.kill("controller")
    bay.stack.start_program("controller")
    assert (await answer).status_code == 200
    assert len(bay.created_pods()) == 1


async def test_a_controller_killed_while_streams_run_restarts_no_runner(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"tokens": 40, "token_seconds": 0.1})
    stream = await _streaming(bay, model)
    uids = [pod["metadata"]["uid"] for pod in bay.pods()]
    bay.stack.plane.kill("controller")
    bay.stack.start_program("controller")
    frames = await stream
    assert frames[-1] == "[DONE]"
    assert len(words(frames).split()) == 40
    await asyncio.sleep(3)
    assert [pod["metadata"]["uid"] for pod in bay.pods()] == uids


async def test_a_gateway_killed_while_requests_wait_loads_nothing_twice(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", engine={"load_seconds": 2})
    lost = asyncio.create_task(bay.ask(model))
    await bay.until("its pod exists", lambda: bay.pods_of(model))
    bay.stack.plane.kill("gateway")
    with pytest.raises(httpx.HTTPError):
        await lost
    bay.stack.start_program("gateway")
    await bay.until("the gateway answers", lambda: _answers(bay))
    assert (await bay.ask(model)).status_code == 200
    assert len(bay.created_pods()) == 1


async def test_an_agent_that_is_away_stops_no_runner(bay: Bay) -> None:
    node = bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    bay.stack.fault(f"agent/{node}?run=false")
    assert (await bay.ask(model)).status_code == 200
    bay.stack.fault(f"agent/{node}?run=true")
    assert (await bay.ask(model)).status_code == 200
    assert len(bay.created_pods()) == 1


async def test_an_api_server_that_restarts_while_a_model_loads(bay: Bay) -> None:
    bay.node()
    up = bay.model("up", engine={"tokens": 80, "token_seconds": 0.1})
    cold = bay.model("cold", engine={"load_seconds": 1})
    stream = await _streaming(bay, up)
    waiting = asyncio.create_task(bay.ask(cold))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(bay.stack.plane.restart, "kube-apiserver")
    frames = await stream
    assert frames[-1] == "[DONE]"
    assert (await waiting).status_code == 200
    assert len(bay.created_pods()) == 2


def _writes(bay: Bay, after: int) -> list[str]:
    """What Berth wrote about this bay since the audit log had ``after`` entries."""
    return [
        f"{entry['verb']} {entry['objectRef']['resource']}/{entry['objectRef'].get('name')}"
        for entry in list(bay.stack.plane.audited())[after:]
        if entry["verb"] in ("create", "update", "patch", "delete")
        and bay.name in (entry["objectRef"].get("namespace"), *bay.nodes)
        and not entry["user"]["username"].startswith("system:")
    ]


def _loaded(bay: Bay) -> list[tuple[str, int]]:
    """Runners and pods: who they are, and how often what is wished of them has changed."""
    found = (*bay.runners(), *bay.pods())
    return [(one["metadata"]["uid"], one["metadata"].get("generation", 0)) for one in found]


async def _api_server_is_away_for(bay: Bay, seconds: float) -> None:
    """Killed, and back after this time. A leader that could not renew its Lease has ended by then."""
    bay.stack.plane.kill("kube-apiserver")
    await asyncio.sleep(seconds)
    await asyncio.to_thread(bay.stack.plane.restart, "kube-apiserver")


def _is_read(bay: Bay, model: str) -> bool:
    """The header of a model was read, by a controller that a kubelet starts again when it ends."""
    bay.stack.start_ended_programs()
    return bool(bay.get(model).get("status", {}).get("needs"))


async def test_an_api_server_that_restarts_while_a_model_is_up_and_idle_changes_nothing(
    bay: Bay,
) -> None:
    bay.node()
    model = bay.model("m", idleTimeout="8s")
    assert (await bay.ask(model)).status_code == 200
    loaded = _loaded(bay)
    assert len(loaded) == 2
    before = len(list(bay.stack.plane.audited()))
    # Away for longer than the model may be idle: reports of use might have been lost meanwhile.
    await _api_server_is_away_for(bay, 8)
    other = bay.model("other")
    await bay.until("the controller works again", lambda: _is_read(bay, other), 60)
    # Statuses may say late what happened before; nothing is made, deleted or wished anew.
    written = [line for line in _writes(bay, before) if other not in line]
    assert [line for line in written if not line.startswith("patch")] == []
    assert _loaded(bay) == loaded
    assert (await bay.ask(model)).status_code == 200
    assert _loaded(bay) == loaded
    await bay.until("idle for long enough, watched well", lambda: bay.state(model) == "Down")


async def test_an_api_server_that_restarts_while_nothing_is_loaded_loads_nothing(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    bay.wait_needs(model)
    before = len(list(bay.stack.plane.audited()))
    await _api_server_is_away_for(bay, 1)
    other = bay.model("other")
    await bay.until("the controller works again", lambda: _is_read(bay, other), 60)
    assert [line for line in _writes(bay, before) if other not in line] == []
    assert (bay.runners(), bay.pods()) == ([], [])
    assert (await bay.ask(model)).status_code == 200
    assert len(bay.created_pods()) == 1


async def test_a_full_machine_is_waited_for_and_said_in_numbers(bay: Bay) -> None:
    node = bay.node(memory=NODE)
    bay.stack.fault(f"foreign/{node}?host={12 * GIB}")
    model = bay.model("m", weights=6 * GIB)
    answer = asyncio.create_task(bay.ask(model))

    def refused() -> bool:
        status = bay.get(model).get("status", {})
        return bool(status.get("lastRefusal")) or bay.state(model) == "Waiting"

    await bay.until("the shortage is told", refused)
    assert bay.pods() == []
    bay.stack.fault(f"foreign/{node}?host=0")
    began = time.monotonic()
    assert (await answer).status_code == 200
    assert time.monotonic() - began < 30


def _answers(bay: Bay) -> bool:
    try:
        return httpx.get(f"{bay.stack.endpoint}/v1/models", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
