"""Nodes are taken and given back, whatever dies in between; the command line is a process of its own."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from api.bay import Bay

BERTH = str(Path(sys.executable).with_name("berth"))
WAITS = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\nsys.exit(7)"
DEADLINE_S = 60.0

Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def hold(bay: Bay, tmp_path: Path) -> Iterator[Hold]:
    """`berth hold` with arguments; its command waits for the file ``done`` and ends with 7."""
    started = []

    def start(*nodes: str, options: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", WAITS, str(tmp_path / "done")]
        process = subprocess.Popen(
            [
                *(BERTH, "hold", *nodes, *options),
                *("--kubeconfig", str(bay.stack.plane.kubeconfig), "--", *command),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    (tmp_path / "done").touch()
    for process in started:
        process.kill()
        process.communicate()
    for one in _holds(bay):
        bay.stack.plane.kubectl("delete", "hold", one["metadata"]["name"], "--ignore-not-found")


def _holds(bay: Bay) -> list[dict[str, Any]]:
    items = json.loads(bay.stack.plane.kubectl("get", "holds", "-o", "json"))["items"]
    return [one for one in items if set(one["spec"]["nodes"]) & set(bay.nodes)]


def _says(bay: Bay, kind: str, status: str = "True") -> list[str]:
    """Names of the holds whose condition is so."""
    return [
        one["metadata"]["name"]
        for one in _holds(bay)
        for c in one.get("status", {}).get("conditions", [])
        if (c["type"], c["status"]) == (kind, status)
    ]


async def _ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, said = await asyncio.to_thread(process.communicate, timeout=DEADLINE_S)
    return process.returncode, said


async def test_a_hold_drains_runs_its_command_and_loads_again_what_was_there(
    bay: Bay, hold: Hold, tmp_path: Path
) -> None:
    node = bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    before = bay.runners()[0]["metadata"]["uid"]
    process = hold(node, options=("--reason", "nightly bench", "--budget", "20m"))
    await bay.until("it is held", lambda: _says(bay, "Held"), DEADLINE_S)
    assert (bay.runners(), bay.pods()) == ([], [])
    refused = await bay.ask(model)
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert (error["code"], error["berth"]["state"]) == ("model_held", "Held")
    assert {k: error["berth"]["hold"][k] for k in ("reason", "budget")} == {
        "reason": "nightly bench",
        "budget": "20m",
    }
    assert 0 < error["berth"]["timeLeft"] <= 1200
    assert int(refused.headers["retry-after"]) >= error["berth"]["timeLeft"]
    assert bay.pods() == []
    (tmp_path / "done").touch()
    code, said = await _ended(process)
    assert code == 7, said
    assert f"model {bay.name}/{model} is loaded on {node}" in said
    assert f"model {bay.name}/{model} is up again" in said
    assert [one["metadata"]["uid"] == before for one in bay.runners()] == [False]
    assert _holds(bay) == []


async def test_what_fits_elsewhere_is_loaded_elsewhere_when_it_is_asked_for(
    bay: Bay, hold: Hold, tmp_path: Path
) -> None:
    first = bay.node("a")
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    other = bay.node("b")
    process = hold(first)
    await bay.until("it is held", lambda: _says(bay, "Held"), DEADLINE_S)
    assert (await bay.ask(model)).status_code == 200
    assert [one["spec"]["nodeName"] for one in bay.runners()] == [other]
    (tmp_path / "done").touch()
    assert (await _ended(process))[0] == 7
    assert [one["spec"]["nodeName"] for one in bay.runners()] == [other]


async def test_a_command_line_that_is_ended_gives_the_node_back(bay: Bay, hold: Hold) -> None:
    node = bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    process = hold(node)
    await bay.until("it is held", lambda: _says(bay, "Held"), DEADLINE_S)
    process.send_signal(signal.SIGTERM)
    code, said = await _ended(process)
    assert code == 128 + signal.SIGTERM, said
    assert bay.state(model) == "Up"
    assert _holds(bay) == []


async def test_one_that_is_killed_loses_the_node_by_its_silence(bay: Bay, hold: Hold) -> None:
    node = bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    process = hold(node)
    await bay.until("it is held", lambda: _says(bay, "Held"), DEADLINE_S)
    process.kill()
    bay.stack.plane.kill("controller")
    bay.stack.start_program("controller", env={"BERTH_HOLD_SILENCE": "2s"})
    try:
        await bay.until("it has expired", lambda: _says(bay, "Expired"), DEADLINE_S)
        await bay.until("it is loaded again", lambda: bay.state(model) == "Up", DEADLINE_S)
    finally:
        bay.stack.plane.kill("controller")
        bay.stack.start_program("controller")
    assert _says(bay, "Held") == []


async def test_of_two_holds_the_younger_waits_for_the_elder(
    bay: Bay, hold: Hold, tmp_path: Path
) -> None:
    first, second = bay.node("a"), bay.node("b")
    elder = hold(first)
    await bay.until("the elder is held", lambda: _says(bay, "Held"), DEADLINE_S)
    held = _says(bay, "Held")
    younger = hold(first, second)
    await bay.until("the younger waits", lambda: _says(bay, "Held", "False"), DEADLINE_S)
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200, "a hold that waits has taken nothing"
    elder.send_signal(signal.SIGTERM)
    assert (await _ended(elder))[0] == 143
    await bay.until("the younger is held", lambda: _says(bay, "Held"), DEADLINE_S)
    assert _says(bay, "Held") != held
    assert bay.pods() == []
    (tmp_path / "done").touch()
    code, said = await _ended(younger)
    assert (code, f"it waits for the hold {held[0]}" in said) == (7, True)
    assert bay.state(model) == "Up"


async def test_a_controller_that_is_killed_during_a_hold_forgets_nothing(
    bay: Bay, hold: Hold, tmp_path: Path
) -> None:
    node = bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    process = hold(node)
    await bay.until("it is held", lambda: _says(bay, "Held"), DEADLINE_S)
    bay.stack.plane.kill("controller")
    bay.stack.start_program("controller")
    other = bay.model("other")
    await bay.until(
        "the new controller reads headers", lambda: bay.get(other).get("status"), DEADLINE_S
    )
    assert (bay.runners(), bay.pods()) == ([], [])
    (tmp_path / "done").touch()
    code, said = await _ended(process)
    assert (code, f"model {bay.name}/{model} is up again" in said) == (7, True)


async def test_a_hold_that_is_deleted_owes_what_it_had_unloaded(bay: Bay) -> None:
    node = bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    name = f"{bay.name}-by-hand"
    bay.stack.plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Hold",
            "metadata": {"name": name},
            "spec": {"nodes": [node], "reason": "new driver", "budget": "2h"},
        }
    )
    await bay.until("it is held", lambda: _says(bay, "Held"), DEADLINE_S)
    assert bay.get(model)["status"]["hold"]["owed"]
    bay.stack.plane.kubectl("delete", "hold", name)
    await bay.until("it is loaded again", lambda: bay.state(model) == "Up", DEADLINE_S)
    assert "hold" not in bay.get(model)["status"]
