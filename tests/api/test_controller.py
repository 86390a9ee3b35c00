"""What the controller promises beside loading: it takes over, adopts, replaces, heals and explains."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from api.bay import GIB, Bay
from api.relay import kubeconfig_through, relay
from cluster.stack import NAMESPACE, Stack


def _epoch(stack: Stack) -> int:
    return int(stack.get("lease", "berth-controller", NAMESPACE)["spec"]["leaseTransitions"])


def _holder(stack: Stack) -> str:
    return str(stack.get("lease", "berth-controller", NAMESPACE)["spec"]["holderIdentity"])


def _condition(model: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions = model.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


async def _until(bay: Bay, what: str, check: Callable[[], Any], deadline_s: float = 30.0) -> Any:
    """`Stack.wait` beside the event loop, so that requests of the test go on."""
    return await asyncio.to_thread(bay.stack.wait, what, check, deadline_s)


async def test_another_controller_takes_over_and_adopts_what_runs(bay: Bay) -> None:
    bay.node()
    model, cold = bay.model("m"), bay.model("cold")
    assert (await bay.ask(model)).status_code == 200
    before, uids = _epoch(bay.stack), [pod["metadata"]["uid"] for pod in bay.pods()]
    bay.stack.start_program("controller", suffix="-heir")
    try:
        bay.stack.plane.kill("controller")
        await _until(bay, "the heir leads", lambda: "heir" in _holder(bay.stack), 40)
        assert _epoch(bay.stack) == before + 1
        assert (await bay.ask(cold)).status_code == 200
        assert [u for u in (p["metadata"]["uid"] for p in bay.pods()) if u in uids] == uids
        epochs = {r["spec"]["modelRef"]["name"]: r["spec"]["epoch"] for r in bay.runners()}
        assert epochs[cold] == before + 1
    finally:
        bay.stack.plane.stop("controller-heir")
        bay.stack.start_program("controller")
    await _until(bay, "the first leads again", lambda: "controller-0" in _holder(bay.stack))


async def test_a_changed_setting_replaces_the_runner_with_its_new_command(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    old = bay.runners()[0]["metadata"]["name"]
    patch = {"spec": {"overrides": {"contextLength": 2048}}}
    bay.stack.plane.kubectl(
        "patch", "model", model, "-n", bay.name, "--type=merge", "-p", json.dumps(patch)
    )

    def replaced() -> bool:
        found = bay.runners()
        return len(found) == 1 and found[0]["metadata"]["name"] != old

    await _until(bay, "the old runner has gone and a new one is up", replaced, 60)
    bay.wait(model, "Up")
    command = bay.runners()[0]["spec"]["command"]
    assert command[command.index("-c") + 1] == "2048"
    status = bay.get(model)["status"]
    assert (status["observedGeneration"], status["contextLength"]) == (2, 2048)


async def test_another_source_is_read_anew(bay: Bay) -> None:
    model = bay.model("m", weights=GIB)
    first = bay.wait_needs(model)["status"]
    patch = {"spec": {"source": {"url": {"uri": bay.file("other", weights=3 * GIB)}}}}
    bay.stack.plane.kubectl(
        "patch", "model", model, "-n", bay.name, "--type=merge", "-p", json.dumps(patch)
    )

    def reread() -> Any:
        status = bay.get(model)["status"]
        return status.get("facts", {}).get("bytes", 0) > 2 * GIB and status

    status = await _until(bay, "the new header is read", reread)
    assert status["observedGeneration"] == 2
    assert status["needs"]["weights"] > 2 * first["needs"]["weights"]


async def test_a_runner_killed_by_hand_is_loaded_again_on_request(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    name = bay.runners()[0]["metadata"]["name"]
    bay.stack.plane.kubectl(
        "annotate", "runner", name, "-n", bay.name, "berth.dev/kill-requested=now"
    )
    gone = lambda: not bay.stack.get("runner", name, bay.name)  # noqa: E731
    await _until(bay, "the runner is gone", gone)
    assert (await bay.ask(model)).status_code == 200


async def test_a_lost_node_gives_its_model_up_to_another(bay: Bay) -> None:
    one = bay.node("one")
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    bay.node("two")
    bay.stack.plane.kubectl("delete", "node", one, "--wait=false")
    bay.nodes.remove(one)
    await _until(bay, "the model is not up", lambda: bay.state(model) != "Up", 60)
    assert (await bay.ask(model)).status_code == 200
    assert {r["spec"]["nodeName"] for r in bay.runners()} == {f"{bay.name}-two"}


async def test_each_obstacle_has_its_own_reason(bay: Bay) -> None:
    bay.apply_model("noprofile", _spec(bay.file("a", weights=1 << 28), profile="nobody"))
    bay.apply_model("missing", _spec(f"{bay.stack.hub}/files/nobody.gguf"))
    bay.apply_model("private", _spec("http://10.255.255.1/m.gguf"))
    bay.stack.plane.apply(_profile(bay, "small", {"maxContextLength": 8000}))
    bay.apply_model(
        "long",
        _spec(
            bay.file("b", weights=1 << 28),
            profile="small",
            overrides={"contextLength": 9000},
        ),
    )

    def said(name: str, kind: str) -> tuple[str, str]:
        found = _condition(bay.get(f"{bay.name}-{name}"), kind)
        return found.get("status", ""), found.get("reason", "")

    wanted = {
        ("noprofile", "Accepted"): ("False", "ProfileNotFound"),
        ("missing", "HeaderRead"): ("False", "SourceNotFound"),
        ("private", "HeaderRead"): ("False", "SourceForbidden"),
        ("long", "Accepted"): ("False", "ContextTooLong"),
    }
    for (name, kind), want in wanted.items():
        await _until(bay, f"{name} says {want}", lambda n=name, k=kind, w=want: said(n, k) == w)
    message = _condition(bay.get(f"{bay.name}-long"), "Accepted")["message"]
    assert "9000" in message
    assert "8000" in message


async def test_the_younger_of_two_with_one_id_is_told(bay: Bay) -> None:
    shared = f"{bay.name}/Qwen:8b"
    bay.model("elder", weights=1 << 28, id=shared)
    await _until(
        bay,
        "the elder is seen",
        lambda: _condition(bay.get(f"{bay.name}-elder"), "IdUnique").get("status") == "True",
    )
    await asyncio.sleep(1.1)
    bay.model("younger", weights=1 << 28, id=shared)
    await _until(
        bay,
        "the younger is told",
        lambda: (
            _condition(bay.get(f"{bay.name}-younger"), "IdUnique").get("reason") == "DuplicateId"
        ),
    )
    assert _condition(bay.get(f"{bay.name}-elder"), "IdUnique")["status"] == "True"


async def test_events_that_stop_coming_are_made_up_for(bay: Bay, tmp_path: Path) -> None:
    """Open connections fall silent and nobody closes them: what a firewall that forgets does."""
    bay.node()
    model = bay.model("m")
    bay.wait_needs(model)
    with relay(bay.stack.plane.port) as link:
        through = kubeconfig_through(bay.stack.plane, link.port, tmp_path)
        bay.stack.plane.stop("controller")
        bay.stack.start_program("controller", env={"KUBECONFIG": str(through)})
        try:
            await _until(bay, "it leads", lambda: "controller-0" in _holder(bay.stack))
            await asyncio.sleep(3)
            link.silence()
            assert (await bay.ask(model)).status_code == 200
        finally:
            bay.stack.plane.stop("controller")
            bay.stack.start_program("controller")
    assert len(bay.created_pods()) == 1


def _spec(uri: str, **more: Any) -> dict[str, Any]:
    return {"source": {"url": {"uri": uri}}, **more}


def _profile(bay: Bay, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Profile",
        "metadata": {"name": name, "namespace": bay.name},
        "spec": spec,
    }


async def test_what_fitted_nowhere_is_loaded_at_once_when_a_node_that_holds_it_comes(
    bay: Bay,
) -> None:
    bay.node("small", memory=8 * GIB)
    model = bay.model("m", weights=20 * GIB)
    bay.wait_needs(model)
    assert (await bay.ask(model)).json()["error"]["code"] == "insufficient_capacity"
    bay.node("large", memory=64 * GIB)
    await _until(
        bay, "the refusal is forgotten", lambda: "lastRefusal" not in bay.get(model)["status"]
    )
    assert (await bay.ask(model)).status_code == 200
