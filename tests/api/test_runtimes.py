"""Models of other runtimes get pods with the right command and image, and are watched as their engine tells."""

import asyncio
import json
from typing import Any

from api.bay import GIB, Bay
from fakes.safetensors import sparse_transformer

CODE = {"command": ["vllm", "serve", "{model}", "--reasoning-parser", "x"], "env": []}


def _transformer(bay: Bay, name: str, **spec: Any) -> str:
    sparse_transformer(bay.claim("weights") / "m")
    return bay.claim_model(name, "m", **spec)


def _under(bay: Bay, name: str, profile: str, **overrides: Any) -> str:
    source = {"url": {"uri": bay.file(name, weights=GIB)}}
    bay.apply_model(name, {"source": source, "profile": profile, "overrides": overrides})
    return f"{bay.name}-{name}"


def _told(pod: dict[str, Any]) -> dict[str, Any]:
    env = {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}
    return dict(json.loads(env["BERTH_RUNNER"]))


def _policy(bay: Bay, **spec: Any) -> None:
    bay.stack.plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Residency",
            "metadata": {"name": bay.name},
            "spec": {"nodeSelector": {"bay": bay.name}, "priority": 100, **spec},
        }
    )


async def test_a_vllm_model_gets_its_bytes_its_image_and_is_watched_by_its_counters(
    bay: Bay,
) -> None:
    bay.node("gpu", gpus="24Gi")
    engine = {"token_seconds": 0.2, "tokens": 40}
    env = [{"name": f"FAKE_{k.upper()}", "value": str(v)} for k, v in engine.items()]
    model = _transformer(bay, "m", overrides={"runtime": "vllm", "parallel": 2, "env": env})
    needs = bay.wait_needs(model)["status"]["needs"]
    asked = asyncio.create_task(bay.ask(model))
    await bay.until("its pod runs", lambda: bay.pods_of(model))
    (pod,) = (p for p in bay.pods() if p["metadata"]["name"] in bay.pods_of(model))
    command = _told(pod)["engine"]
    assert command[:3] == ["vllm", "serve", "/models/m"]
    value = {name: command[command.index(name) + 1] for name in command if name.startswith("--")}
    assert (
        int(value["--kv-cache-memory-bytes"]) == needs["kvCache"] == 2 * 4096 * 8 * 2 * 4 * 64 * 2
    )
    share = float(value["--gpu-memory-utilization"])
    assert abs(share - needs["gpu"] / (24 << 30)) < 0.0002
    assert (value["--dtype"], value["--kv-cache-dtype"]) == ("bfloat16", "auto")
    assert pod["spec"]["containers"][0]["image"] == "fake/vllm:cuda"
    env_of = _told(pod)["env"]
    assert (env_of["VLLM_NO_USAGE_STATS"], env_of["FAKE_TOKENS"]) == ("1", "40")
    assert env_of["TRITON_CACHE_DIR"].startswith("/tmp/cache/")

    def busy() -> Any:
        health = [r.get("status", {}).get("agent", {}).get("health", {}) for r in bay.runners()]
        return any(one.get("busy") and one.get("tokens", 0) > 0 for one in health)

    await bay.until("the agent sees its tokens while it answers", busy)
    assert (await asked).status_code == 200


async def test_files_of_another_format_are_refused_before_anything_is_placed(bay: Bay) -> None:
    bay.node("gpu", gpus="24Gi")
    model = bay.model("m", profile={"runtime": "sglang"})
    await bay.until(
        "it is refused", lambda: bay.condition(model, "Accepted").get("status") == "False"
    )
    told = bay.condition(model, "Accepted")
    assert (told["reason"], "safetensors" in told["message"]) == ("BadFlags", True)
    assert bay.created_pods() == []


async def test_without_an_image_for_the_hardware_there_is_no_place(bay: Bay) -> None:
    bay.node("gpu", gpus="24Gi")
    model = _transformer(bay, "m", overrides={"runtime": "max"})
    await bay.until(
        "it is refused", lambda: bay.condition(model, "Accepted").get("status") == "False"
    )
    assert "no runner image is set for max/cuda" in bay.condition(model, "Accepted")["message"]


async def test_a_command_runs_only_where_a_policy_trusts_it(bay: Bay) -> None:
    bay.node("gpu", gpus="24Gi")
    model = _transformer(bay, "m", overrides={"runtime": "vllm", **CODE, "preExec": [["true"]]})
    bay.wait_needs(model)
    refused = await bay.ask(model)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "code_not_trusted")
    assert "Command, PreExec" in bay.get(model)["status"]["lastRefusal"]["message"]
    assert bay.runners() == []
    _policy(bay, trust=["Command", "PreExec"], env=[{"name": "NODE_SAYS", "value": "{name}"}])
    await bay.until(
        "the refusal is withdrawn", lambda: not bay.get(model)["status"].get("lastRefusal")
    )
    assert (await bay.ask(model)).status_code == 200
    (runner,) = bay.runners()
    words = runner["spec"]["command"]
    assert words[:5] == ["vllm", "serve", "/models/m", "--reasoning-parser", "x"]
    assert "--kv-cache-memory-bytes" in words
    assert runner["spec"]["preExec"] == [["true"]]
    assert {"name": "NODE_SAYS", "value": model} in runner["spec"]["env"]


async def test_settings_without_effect_are_told(bay: Bay) -> None:
    bay.node()
    model = _transformer(bay, "m", overrides={"runtime": "vllm", "cacheRam": "1Gi"})
    bay.wait_needs(model)
    await bay.until("it is told", lambda: bay.condition(model, "Accepted").get("message"))
    assert (
        bay.condition(model, "Accepted")["message"]
        == "vllm does not use cacheRam: it has no effect"
    )


async def test_a_context_above_the_profiles_window_is_refused_with_both_numbers(bay: Bay) -> None:
    bay.stack.plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Profile",
            "metadata": {"name": "short", "namespace": bay.name},
            "spec": {"maxContextLength": 2048},
        }
    )
    field = _under(bay, "field", "short", contextLength=4096)
    literal = _under(bay, "literal", "short", args=["-c", "3000"])
    owned = _under(bay, "owned", "short", args=["--port", "1"])
    for model, reason, words in (
        (field, "ContextTooLong", ("4096", "2048")),
        (literal, "ContextTooLong", ("3000", "2048")),
        (owned, "BadFlags", ("--port", "Berth passes it")),
    ):
        await bay.until(
            f"{model} is refused",
            lambda model=model: bay.condition(model, "Accepted").get("status") == "False",
        )
        told = bay.condition(model, "Accepted")
        assert told["reason"] == reason
        assert [word for word in words if word not in told["message"]] == []
    assert (await bay.ask(field)).status_code == 503
    assert bay.created_pods() == []
