"""What the node's agent does for pods, on a real node: volumes of the store's driver."""

import asyncio
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from berth.agent.cgroups import Cgroups
from cluster import mounts
from cluster.release import NAMESPACE
from e2e.installed import FILE, REPO, TINY_FILE, TINY_REPO, Installed, chat

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
STRICT = "strict"
LONG = {"max_tokens": 60, "ignore_eos": True}


@pytest.fixture(scope="module")
def strict(berth: Installed) -> str:
    """A namespace that enforces the ``restricted`` Pod Security standard."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    berth.cluster.plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": STRICT, "labels": label}}
    )
    return STRICT


def declare(berth: Installed, name: str, namespace: str) -> None:
    source = {"huggingFace": {"repo": REPO, "files": [FILE]}}
    berth.cluster.plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Model",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"source": source},
        }
    )


def volume_mounts(berth: Installed) -> list[str]:
    """Mount points of the driver's volumes in the node's mount namespace."""
    holder = berth.cluster.plane.processes.find(mounts.HOLDER)
    assert holder is not None
    table = Path(f"/proc/{holder.pid}/mountinfo").read_text()
    points = [line.split()[4] for line in table.splitlines()]
    return [point for point in points if "/volumes/kubernetes.io~csi/" in point]


def containers(berth: Installed) -> dict[str, int]:
    """Restarts of the agent's containers."""
    pods = berth.every("pods", "berth-system", "app.kubernetes.io/component=agent")
    return {
        status["name"]: status["restartCount"]
        for pod in pods
        for status in pod["status"]["containerStatuses"]
        if status["ready"]
    }


async def answer_of_stream(berth: Installed, name: str) -> list[str]:
    async with (
        berth.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat(name, stream=True, **LONG)) as got,
    ):
        return [line[6:] async for line in got.aiter_lines() if line.startswith("data: ")]


class TestVolumes:
    async def test_a_runner_in_a_restricted_namespace_serves_while_agent_and_driver_are_killed(
        self, berth: Installed, strict: str
    ) -> None:
        before = volume_mounts(berth)
        declare(berth, "careful", strict)
        assert (await berth.ask("careful")).status_code == 200
        pod = berth.every("pods", strict, "berth.dev/model=careful")[0]
        volume = next(v for v in pod["spec"]["volumes"] if v["name"] == "models")
        assert volume["csi"]["driver"] == "store.berth.dev"
        assert len(volume_mounts(berth)) == len(before) + 1

        restarts = containers(berth)
        stream = asyncio.create_task(answer_of_stream(berth, "careful"))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(berth.kill_program, "agent")
        frames = await stream
        assert frames[-1] == "[DONE]"
        await asyncio.to_thread(
            berth.wait,
            "agent and driver are back",
            lambda: containers(berth) == {name: count + 1 for name, count in restarts.items()},
        )
        assert (await berth.ask("careful")).status_code == 200
        assert len(volume_mounts(berth)) == len(before) + 1

        berth.kubectl("delete", "model", "careful", "-n", strict, "--timeout=60s")
        await asyncio.to_thread(
            berth.wait, "no volume is left", lambda: volume_mounts(berth) == before, 90
        )

    async def test_the_files_are_read_only_in_the_pod_and_another_pod_gets_none(
        self, berth: Installed, strict: str
    ) -> None:
        declare(berth, "shown", strict)
        assert (await berth.ask("shown")).status_code == 200
        pod = berth.every("pods", strict, "berth.dev/model=shown")[0]
        name = pod["metadata"]["name"]
        listed = berth.kubectl("exec", "-n", strict, name, "--", "ls", "/models")
        assert listed.split() == [FILE]
        options = berth.kubectl(
            "exec", "-n", strict, name, "--", "grep", " /models ", "/proc/mounts"
        )
        assert options.split()[3].split(",")[0] == "ro"

        berth.cluster.plane.apply(thief(strict, pod["spec"]["containers"][0]["image"]))
        await asyncio.to_thread(
            berth.wait, "the other pod is refused", lambda: "nothing is lent" in events(berth)
        )
        phase = berth.get("pod", "thief", strict)["status"]["phase"]
        assert phase == "Pending"
        berth.kubectl("delete", "pod", "thief", "-n", strict, "--timeout=60s")
        berth.kubectl("delete", "model", "shown", "-n", strict, "--timeout=60s")


FIRST_TURN = "Tell me of the harbour and its ships. " * 30


@pytest.fixture(scope="module")
def chatty(berth: Installed) -> Iterator[str]:
    """A model whose sessions are saved."""
    source = {"huggingFace": {"repo": TINY_REPO, "files": [TINY_FILE]}}
    overrides = {"drain": {"saveSessions": True, "timeout": "20s"}, "contextLength": 4096}
    yield berth.model("chatty", source, overrides=overrides)
    berth.delete("chatty")


async def turn(berth: Installed, name: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"model": name, "messages": messages, "max_tokens": 4, "temperature": 0}
    async with berth.client() as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def saved_files(berth: Installed) -> list[Path]:
    return sorted((berth.cluster.node.folder / "store" / "sessions").glob("*/*/*"))


class TestSessions:
    async def test_the_second_turn_after_an_unload_reads_almost_nothing_anew(
        self, berth: Installed, chatty: str
    ) -> None:
        messages = [{"role": "user", "content": FIRST_TURN}]
        first = await turn(berth, chatty, messages)
        berth.kubectl("annotate", "model", chatty, "berth.dev/unload-requested=1")
        await asyncio.to_thread(
            berth.wait, "it is unloaded", lambda: not berth.runner_pods(chatty), 90
        )
        saved = saved_files(berth)
        assert [file.name for file in saved] == ["sessions.json", "slot-0.bin"]
        assert {(stat.S_IMODE(f.stat().st_mode), f.stat().st_uid) for f in saved} == {
            (0o600, 65532)
        }

        said = first["choices"][0]["message"]["content"]
        messages += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": "And then?"},
        ]
        second = await turn(berth, chatty, messages)
        read = first["timings"]["prompt_n"], second["timings"]["prompt_n"]
        print(f"tokens read: first turn {read[0]}, second turn after unload and load {read[1]}")
        assert second["timings"]["cache_n"] >= first["timings"]["prompt_n"]
        assert read[1] < read[0] / 10

        berth.delete(chatty)
        await asyncio.to_thread(
            berth.wait, "its sessions are gone", lambda: not saved_files(berth), 90
        )


@pytest.fixture
def copied(berth: Installed) -> Iterator[str]:
    """A model, and afterwards neither it nor a copy of its weights."""
    yield berth.model("copied")
    berth.delete("copied")
    give_budget(berth, "0")
    berth.wait("no copy is left", lambda: not holders(berth), 90)


def give_budget(berth: Installed, size: str) -> None:
    """So much host memory for copies of weights on every node."""
    policy = berth.get("residency", "everywhere")
    spec = {**policy["spec"], "hostWeights": {"budget": size}}
    berth.cluster.plane.apply(
        {**BASE, "kind": "Residency", "metadata": {"name": "everywhere"}, "spec": spec}
    )


BASE = {"apiVersion": "berth.dev/v1alpha1"}


def holders(berth: Installed) -> list[dict[str, Any]]:
    return berth.every("pods", NAMESPACE, "berth.dev/holds")


def file_bytes(pod: dict[str, Any]) -> int:
    """File pages that are charged to a pod, as its memory cgroup tells."""
    figures = Cgroups(Path("/sys/fs/cgroup")).figures(pod["metadata"]["uid"])
    return int(figures.file) if figures else 0


class TestCopies:
    async def test_a_reload_maps_the_copy_and_is_not_charged_for_it(
        self, berth: Installed, copied: str
    ) -> None:
        assert (await berth.ask(copied)).status_code == 200
        alone = berth.every("runners")[0]["spec"]["claim"]
        size = int(alone["hostFilePages"])
        # Not before: others have loaded this file here, and its copy would be made at once.
        give_budget(berth, "1Gi")
        berth.kubectl("annotate", "model", copied, "berth.dev/unload-requested=1")
        await asyncio.to_thread(
            berth.wait, "it is unloaded", lambda: not berth.runner_pods(copied), 120
        )
        await asyncio.to_thread(
            berth.wait, "the controller sees the copy", lambda: figure(berth, "copy_bytes"), 120
        )
        (holder,) = holders(berth)
        locked = file_bytes(holder)
        assert (await berth.ask(copied)).status_code == 200
        beside = berth.every("runners")[0]["spec"]["claim"]
        pod = berth.get("pod", berth.runner_pods(copied)[0])
        mapped = file_bytes(pod)
        # The answer comes beside the pass that counts the load.
        await asyncio.to_thread(
            berth.wait, "the hit is counted", lambda: figure(berth, "copy_hits_total") == 1
        )
        print(
            f"claim {alone['host'] >> 20} MiB alone, {beside['host'] >> 20} MiB beside the copy; file "
            f"pages charged: {locked >> 20} MiB to the holder, {mapped >> 20} MiB to the runner"
        )
        assert (beside["host"], beside["hostFilePages"]) == (alone["host"] - size, 0)
        assert locked >= size > 100 << 20
        assert mapped < size / 10


def figure(berth: Installed, name: str) -> float:
    """One of the controller's figures of host copies."""
    (pod,) = berth.every("pods", NAMESPACE, "app.kubernetes.io/component=controller")
    page = httpx.get(f"http://{pod['status']['podIP']}:8081/metrics", trust_env=False).text
    found = re.search(rf"^berth_host_{name} (\S+)$", page, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def events(berth: Installed) -> str:
    return berth.kubectl("get", "events", "-n", STRICT, "-o", "jsonpath={.items[*].message}")


def thief(namespace: str, image: str) -> dict[str, Any]:
    """A pod that asks the driver for weights and is no runner."""
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    csi = {"driver": "store.berth.dev", "readOnly": True, "volumeAttributes": {"volume": "weights"}}
    container = {
        "name": "c",
        "image": image,
        "command": ["sleep", "60"],
        "volumeMounts": [{"name": "w", "mountPath": "/w"}],
        "securityContext": security,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "thief", "namespace": namespace},
        "spec": {"containers": [container], "volumes": [{"name": "w", "csi": csi}]},
    }


def test_the_host_knows_no_more_mounts_than_before(berth: Installed) -> None:
    """What the driver mounts stays in the node's namespace and goes with it."""
    table = subprocess.run(["cat", "/proc/self/mountinfo"], capture_output=True, text=True)
    assert "kubernetes.io~csi" not in table.stdout
