"""Kept, idle, suspended, scaled, loaded and unloaded by hand."""

import os
import subprocess
import sys
from pathlib import Path

from api.bay import Bay


def berth(bay: Bay, *arguments: str) -> str:
    """The command line, as its user runs it."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("berth")), *arguments],
        env={**os.environ, "KUBECONFIG": str(bay.stack.plane.kubeconfig)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


async def test_a_model_that_nobody_uses_is_unloaded(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", idleTimeout="3s")
    assert (await bay.ask(model)).status_code == 200
    bay.wait(model, "Down", 20)
    bay.stack.wait("its pod is gone", lambda: not bay.pods())
    assert (await bay.ask(model)).status_code == 200


async def test_min_replicas_keeps_a_model_loaded(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", minReplicas=1, idleTimeout="1s")
    bay.wait(model, "Up")


async def test_suspend_unloads_and_keeps_away(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", minReplicas=1)
    bay.wait(model, "Up")
    bay.stack.plane.kubectl(
        "patch", "model", model, "-n", bay.name, "--type=merge", "-p", '{"spec":{"suspend":true}}'
    )
    bay.stack.wait("its pod is gone", lambda: not bay.pods())
    answer = await bay.ask(model)
    assert answer.status_code == 503


async def test_kubectl_scale_loads_and_unloads(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", idleTimeout="1s")
    bay.wait_needs(model)
    bay.stack.plane.kubectl("scale", "model", model, "-n", bay.name, "--replicas=2")
    bay.stack.wait(
        "two runners are up", lambda: bay.get(model).get("status", {}).get("replicas") == 2
    )
    bay.stack.plane.kubectl("scale", "model", model, "-n", bay.name, "--replicas=0")
    bay.stack.wait("all pods are gone", lambda: not bay.pods())


async def test_load_and_unload_by_hand(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    bay.wait_needs(model)
    berth(bay, "load", model, "-n", bay.name)
    assert bay.state(model) == "Up"
    assert "already" in berth(bay, "load", model, "-n", bay.name)
    berth(bay, "unload", model, "-n", bay.name)
    assert bay.pods() == []
    assert "already" in berth(bay, "unload", model, "-n", bay.name)
