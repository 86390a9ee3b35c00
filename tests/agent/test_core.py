"""Does the whole agent do what the contract says, against a fake node and a fake API server?"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.places import NAMESPACE, NODE, RUNNERS
from agent.world import BUSY, IDLE, World
from berth.agent.core import Agent
from berth.agent.fetch_errors import HashMismatchError
from berth.agent.health import Look
from berth.agent.host import Process
from berth.agent.probe import Target
from berth.agent.views import Views
from berth.api.model import Model
from berth.api.residency import Residency
from berth.kube.refs import PODS, SECRETS, ref_of
from berth.settings import Settings
from berth.units import GiB, MiB
from fakes.gguf import sparse_llama
from fakes.node import FakeGpu

FILE = {"name": "m.gguf", "url": "https://hub/m.gguf", "size": 4 * MiB, "sha256": "a" * 64}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def gpu_claim(gib: float, device: str = "GPU-0") -> dict[str, object]:
    return {"host": 1 * GiB, "devices": [{"device": device, "memory": int(gib * GiB)}]}


async def test_a_preparing_runner_gets_its_files_and_no_admission(world: World):
    world.runner(stage="Preparing", files=[FILE])
    async with world.agent():
        await world.until(lambda: fetch_state(world) == "Verified", "it is verified")
        assert world.files.runners == {"uid-llama-0": ["m.gguf"]}
        assert world.status().admission is None
        await world.until(lambda: world.inventory().file_count == 1, "the inventory has the file")


async def test_a_token_is_read_from_the_secret_and_sent_with_the_files(world: World):
    world.kube.put(
        SECRETS,
        {"metadata": {"name": "hub", "namespace": NAMESPACE}, "data": {"token": "c2VjcmV0"}},
    )
    world.runner(stage="Preparing", files=[FILE], tokenSecretRef={"name": "hub"})
    async with world.agent():
        await world.until(lambda: world.files.asked, "the files are asked for")
    assert world.files.asked[0].credentials == {"Authorization": "Bearer secret"}


async def test_a_missing_secret_is_a_reason(world: World):
    world.runner(stage="Preparing", files=[FILE], tokenSecretRef={"name": "hub"})
    async with world.agent():
        await world.until(lambda: fetch_state(world) == "Failed", "it fails")
    assert world.status().fetch.reason == "SecretNotFound"


async def test_a_wrong_file_is_a_reason(world: World):
    world.files.fails = HashMismatchError("sha256 is b, a was promised")
    world.runner(stage="Preparing", files=[FILE])
    async with world.agent():
        await world.until(lambda: fetch_state(world) == "Failed", "it fails")
    assert world.status().fetch.reason == "HashMismatch"
    assert "promised" in world.status().fetch.message


async def test_a_reserved_runner_is_admitted_with_numbers(world: World):
    world.node.devices = [FakeGpu("GPU-0", 24 * GiB)]
    world.runner(claim=gpu_claim(20))
    async with world.agent():
        await world.until(lambda: world.status().admission, "a decision")
        admission = world.status().admission
        assert (admission.state, admission.pass_id) == ("Admitted", "p1")
        assert (admission.need, admission.have) == (20 * GiB, 22.5 * GiB)


async def test_a_load_waits_until_the_memory_is_there(world: World):
    world.node.devices = [FakeGpu("GPU-0", 24 * GiB, foreign=10 * GiB)]
    world.runner(claim=gpu_claim(20))
    async with world.agent():
        await world.until(lambda: world.status().admission, "a decision")
        refused = world.status().admission
        assert (refused.state, refused.reason) == ("Refused", "Memory")
        assert (refused.need, refused.have) == (20 * GiB, 12.5 * GiB)
        assert "10 GiB used by others" in refused.message
        world.node.devices[0].foreign = 0
        await world.until(lambda: world.status().admission.state == "Admitted", "it is admitted")


async def test_a_new_pass_is_decided_anew(world: World):
    world.runner()
    async with world.agent():
        await world.until(lambda: world.status().admission, "a decision")
        world.edit("llama-0", passId="p2")
        await world.until(lambda: world.status().admission.pass_id == "p2", "the new pass")


async def test_an_expired_admission_without_a_pod_is_given_anew(world: World):
    world.timing = world.timing.__class__(**{**vars(world.timing), "admission_ttl_s": 0.05})
    world.runner()
    async with world.agent():
        await world.until(lambda: world.status().admission, "a decision")
        first = world.status().admission.expires_at
        await world.until(lambda: world.status().admission.expires_at != first, "a new one")
        assert world.status().admission.state == "Admitted"


async def test_two_loads_on_one_device_go_one_after_the_other(world: World):
    world.node.devices = [FakeGpu("GPU-0", 80 * GiB), FakeGpu("GPU-1", 80 * GiB)]
    world.runner("a", claim=gpu_claim(8))
    world.runner("b", claim=gpu_claim(8))
    world.runner("c", claim=gpu_claim(8, "GPU-1"))
    async with world.agent():
        for name in "abc":
            await world.until(lambda n=name: world.status(n).admission, f"a decision on {name}")
        assert world.status("a").admission.state == "Admitted"
        assert world.status("b").admission.reason == "LoadInProgress"
        assert world.status("c").admission.state == "Admitted"
        world.pod("a", ip="10.0.0.1")
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: world.status("b").admission.state == "Admitted", "b's turn")


async def test_an_epoch_below_the_highest_seen_is_refused_even_after_a_restart(world: World):
    world.runner("new", epoch=7)
    async with world.agent():
        await world.until(lambda: world.inventory().epoch == 7, "the epoch is kept")
    world.kube.remove(RUNNERS, "new", NAMESPACE)
    world.runner("old", epoch=6)
    async with world.agent():
        await world.until(lambda: world.status("old").admission, "a decision")
        assert world.status("old").admission.reason == "StaleEpoch"


async def test_health_goes_from_starting_to_ready_to_busy_and_back(world: World):
    world.runner()
    async with world.agent():
        world.pod()
        await world.until(lambda: state_of(world) == "Starting", "it starts")
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: state_of(world) == "Ready", "it is ready")
        world.probe.looks["10.0.0.1"] = BUSY
        await world.until(lambda: world.status().health.busy == 1, "it is busy")
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: world.status().health.busy == 0, "it is idle")


async def test_busy_without_progress_is_a_hang(world: World):
    world.runner(hangTimeoutSeconds=0)
    async with world.agent():
        world.pod()
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: state_of(world) == "Ready", "it is ready")
        world.probe.looks["10.0.0.1"] = BUSY
        await world.until(lambda: state_of(world) == "Hung", "it hangs")
        world.probe.looks["10.0.0.1"] = Look(healthy=True, busy=1, progress={"tokens": 9})
        await world.until(lambda: state_of(world) == "Hung", "and stays so")


async def test_an_idle_ready_runner_writes_nothing(world: World):
    world.runner()
    async with world.agent():
        pod = world.pod()
        world.node.hold(pod, host=3 * GiB)
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: state_of(world) == "Ready", "it is ready")
        await world.until(lambda: world.status().memory, "its memory is told")
        asked = world.probe.asked
        await world.until(lambda: world.probe.asked > asked + 2, "it is looked at")
        before, asked = len(world.kube.writes), world.probe.asked
        await world.until(lambda: world.probe.asked > asked + 10, "it is looked at again and again")
        assert world.kube.writes[before:] == []


async def test_a_drain_is_quiet_when_nothing_is_in_hand_and_taken_back_when_something_is(
    world: World,
):
    world.runner()
    async with world.agent():
        world.pod()
        world.probe.looks["10.0.0.1"] = BUSY
        await world.until(lambda: state_of(world) == "Ready", "it is ready")
        world.edit("llama-0", drain=order("2026-01-01T00:00:00Z"))
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: world.status().quiet, "it is quiet")
        assert world.status().quiet.drain_seen == "2026-01-01T00:00:00Z"
        world.probe.looks["10.0.0.1"] = BUSY
        await world.until(lambda: world.status().quiet is None, "it is taken back")
        world.probe.looks["10.0.0.1"] = IDLE
        world.edit("llama-0", drain=order("2026-01-01T00:05:00Z"))
        await world.until(
            lambda: (q := world.status().quiet) and q.drain_seen == "2026-01-01T00:05:00Z",
            "quiet under the new order",
        )


@dataclass
class Gate:
    """A probe whose looks see what is there when they begin, and end when the gate is open."""

    look: Look = IDLE
    asked: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, _: Target) -> Look:
        self.asked += 1
        look = self.look
        await self.opened.wait()
        await asyncio.sleep(0.01)  # as long as an engine takes to answer
        return look


async def test_a_look_that_began_before_the_drain_was_ordered_shows_no_quiet(world: World):
    world.runner()
    gate = Gate()
    gate.opened.set()
    async with world.agent(probe=gate):
        world.pod()
        await world.until(lambda: state_of(world) == "Ready", "it is ready")
        gate.opened.clear()
        asked = gate.asked
        await world.until(lambda: gate.asked > asked, "a look is on its way")
        world.edit("llama-0", drain=order("2026-01-01T00:00:00Z"))
        await world.until(lambda: drain_is_seen(world), "the agent has seen the order")
        gate.look = BUSY
        gate.opened.set()
        await world.until(lambda: world.status().health.busy == 1, "looks after it see the work")
    told = [
        write.body["status"].get("agent", {}) for write in world.kube.writes if write.subresource
    ]
    assert not any(status.get("quiet") for status in told)


def drain_is_seen(world: World) -> bool:
    (work,) = world.running.works()
    return work.runner.spec.drain is not None


async def test_a_drain_of_one_without_a_pod_is_quiet_at_once(world: World):
    world.runner()
    async with world.agent():
        world.edit("llama-0", drain=order("2026-01-01T00:00:00Z"))
        await world.until(lambda: world.status().quiet, "nothing can be in hand")


async def test_one_that_the_controller_calls_up_is_not_quiet_while_it_does_not_answer(world: World):
    world.runner(drain=order("2026-01-01T00:00:00Z"))
    world.kube.change(
        RUNNERS, "llama-0", NAMESPACE, lambda obj: obj.update(status={"upSince": "2026-01-01"})
    )
    world.pod()
    async with world.agent():
        await world.until(lambda: world.probe.asked > 3, "it is looked at")
        assert world.status().quiet is None


async def test_a_restart_repeats_nothing_that_was_told(world: World):
    world.runner(files=[FILE])
    async with world.agent():
        await world.until(lambda: world.status().admission, "admitted")
        pod = world.pod()
        world.node.hold(pod, host=2 * GiB)
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(
            lambda: state_of(world) == "Ready" and world.status().memory, "it is ready"
        )
    told, writes = world.status(), world.agent_writes()
    asked = world.probe.asked
    async with world.agent():
        await world.until(lambda: world.probe.asked > asked + 3, "it is looked at again")
    assert (world.status(), world.agent_writes()) == (told, writes)


async def test_a_busy_runner_is_not_called_hung_because_the_agent_was_away(world: World):
    world.runner()
    async with world.agent():
        world.pod()
        world.probe.looks["10.0.0.1"] = BUSY
        await world.until(lambda: (h := world.status().health) and h.busy == 1, "it is busy")
    asked = world.probe.asked
    async with world.agent():
        await world.until(lambda: world.probe.asked > asked + 3, "it is looked at again")
        assert state_of(world) == "Ready"


async def test_what_was_told_of_a_pod_that_is_gone_is_not_taken_up(world: World):
    world.runner()
    async with world.agent():
        world.pod()
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: state_of(world) == "Ready", "it is ready")
    world.kube.remove(PODS, "llama-0", NAMESPACE)
    async with world.agent():
        await world.until(lambda: state_of(world) is None, "nothing is known of it")


async def test_the_next_load_waits_until_the_memory_of_the_last_is_back(world: World):
    world.node.devices = [FakeGpu("GPU-0", 80 * GiB)]
    world.runner("a", claim=gpu_claim(8))
    async with world.agent():
        pod = world.pod("a")
        world.node.hold(pod, host=GiB, devices={"GPU-0": 8 * GiB})
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: state_of(world, "a") == "Ready", "a is up")
        world.kube.remove(PODS, "a", NAMESPACE)
        world.kube.remove(RUNNERS, "a", NAMESPACE)
        world.runner("b", claim=gpu_claim(8))
        await world.until(lambda: world.status("b").admission, "a decision")
        assert world.status("b").admission.reason == "Settling"
        world.node.free(pod)
        await world.until(lambda: world.status("b").admission.state == "Admitted", "it is back")


async def test_files_are_released_when_runner_and_pod_are_gone(world: World):
    world.runner(files=[FILE])
    async with world.agent():
        await world.until(lambda: world.status().admission, "admitted")
        world.pod()
        world.kube.remove(RUNNERS, "llama-0", NAMESPACE)
        await world.until(lambda: not world.files.released, "its pod still has them open")
        world.kube.remove(PODS, "llama-0", NAMESPACE)
        await world.until(lambda: world.files.released == ["uid-llama-0"], "they are released")
    assert world.files.blobs


async def test_while_the_api_server_is_away_probing_goes_on_and_the_newest_is_written(world: World):
    world.runner()
    async with world.agent():
        world.pod()
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: state_of(world) == "Ready", "it is ready")
        world.kube.away = True
        world.kube.wake()
        asked = world.probe.asked
        world.probe.looks["10.0.0.1"] = Look(healthy=True, busy=3, progress={"tokens": 1})
        await world.until(lambda: world.probe.asked > asked + 5, "it is looked at")
        assert world.status().health.busy == 0
        before = world.agent_writes()
        world.kube.away = False
        await world.until(lambda: world.status().health.busy == 3, "the newest is written")
        assert world.agent_writes() == before + 1


async def test_facts_of_a_host_path_are_in_the_inventory_and_stay_over_a_restart(world: World):
    folder = world.folder / "host/data"
    sparse_llama(folder / "m.gguf", weights=1 << 20)
    world.settings["BERTH_HOST_ROOT"] = str(world.folder / "host")
    source = {"path": {"hostPath": "/data", "path": "m.gguf"}}
    world.kube.put(
        ref_of(Model),
        {"metadata": {"name": "m", "namespace": NAMESPACE}, "spec": {"source": source}},
    )
    async with world.agent():
        await world.until(lambda: world.inventory().paths, "the path is looked at")
        assert world.inventory().paths[0].reason == "HostPathNotAllowed"
        policy = {"nodeSelector": {"zone": "a"}, "hostPaths": ["/data"]}
        world.kube.put(ref_of(Residency), {"metadata": {"name": "all"}, "spec": policy})
        await world.until(lambda: world.inventory().paths[0].facts, "its header is read")
        assert world.inventory().paths[0].facts.architecture == "llama"
    seen = []
    async with world.agent():
        await world.until(lambda: seen.append(world.inventory().paths) or len(seen) > 50, "looks")
        assert all(paths and paths[0].facts for paths in seen)


async def test_on_a_unified_board_a_loaded_runner_is_counted_once(world: World):
    """Neither its cgroup nor the driver shows what it holds: MemAvailable does (M12)."""
    world.node.devices = [FakeGpu("GPU-0", 0, tells=False)]
    world.node.memory_total = 128 * GiB
    world.runner("a", claim=gpu_claim(40))
    async with world.agent():
        await world.until(lambda: world.status("a").admission, "a decision")
        assert world.status("a").admission.have == 103 * GiB
        pod = world.pod("a")
        world.node.hold(pod, host=GiB, devices={"GPU-0": 35 * GiB})
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: state_of(world, "a") == "Ready", "a is up")
        world.runner("b", claim=gpu_claim(50))
        await world.until(lambda: world.status("b").admission, "a decision")
        admission = world.status("b").admission
        assert (admission.state, admission.have) == ("Admitted", 62 * GiB)


async def test_an_engine_of_somebody_else_on_a_unified_board_is_named(world: World):
    world.node.devices = [FakeGpu("GPU-0", 0)]
    world.node.memory_total = 128 * GiB
    world.node.others = [Process(77, "vllm", "vllm serve m")]
    world.runner(claim=gpu_claim(40))
    async with world.agent():
        await world.until(lambda: world.status().admission, "a decision")
        assert world.status().admission.reason == "ForeignEngine"
        assert "vllm (pid 77)" in world.status().admission.message
        world.node.others = []
        await world.until(lambda: world.status().admission.state == "Admitted", "it is gone")


async def test_agents_of_many_nodes_share_the_watches_of_one_process(world: World):
    nodes = ["n1", "n2", "n3"]
    views = Views(world.kube)
    agents = [
        Agent(
            node=name,
            kube=world.kube,
            host=world.node,
            gpus=world.node,
            files=world.files,
            settings=Settings({}),
            probe=world.probe,
            views=views,
            timing=world.timing,
            journal=world.folder / name,
        )
        for name in nodes
    ]
    for name in nodes:
        world.runner(f"r-{name}", nodeName=name)
    tasks = [asyncio.create_task(part.run()) for part in (*views.caches, *agents)]
    for name in nodes:
        await world.until(lambda n=name: world.status(f"r-{n}").admission, f"{name} decides")
    assert world.kube.reads["list runners"] == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_guard_ends_the_load_under_way_on_a_unified_board(world: World):
    world.node.devices = [FakeGpu("GPU-0", 0)]
    world.node.memory_total, world.node.foreign = 128 * GiB, 4 * GiB
    world.runner("up")
    async with world.agent():
        up = world.pod("up", ip="10.0.0.1")
        world.probe.looks["10.0.0.1"] = IDLE
        await world.until(lambda: state_of(world, "up") == "Ready", "one is up")
        world.runner("loading", claim={"host": 100 * GiB})
        loading = world.pod("loading", ip="10.0.0.2")
        world.node.hold(up, host=GiB)
        world.node.hold(loading, host=116 * GiB)
        await world.until(lambda: world.node.killed, "the guard acts")
        assert world.node.killed == [loading]
        await world.until(lambda: world.inventory().guard_kills == 1, "it is counted")


async def test_with_evict_idle_the_guard_ends_who_was_idle_for_longest(world: World):
    world.node.devices = [FakeGpu("GPU-0", 0)]
    world.node.memory_total, world.node.foreign = 128 * GiB, 4 * GiB
    world.policy(guard="EvictIdle")
    (world.folder / "journal").mkdir()
    (world.folder / "journal" / "last-busy.json").write_text('{"uid-a": 200.0, "uid-b": 100.0}')
    pods = {}
    for name, ip in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
        world.runner(name)
        world.probe.looks[ip] = IDLE
    async with world.agent():
        for name, ip in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
            pods[name] = world.pod(name, ip=ip)
        await world.until(
            lambda: state_of(world, "a") == state_of(world, "b") == "Ready", "both are up"
        )
        world.node.hold(pods["a"], host=60 * GiB)
        world.node.hold(pods["b"], host=58 * GiB)
        await world.until(lambda: world.node.killed, "the guard acts")
    assert world.node.killed == [pods["b"]]


async def test_weights_that_a_pod_holds_in_memory_are_nobody_elses(world: World):
    """One that is being read counts with its whole claim, before its bytes are in use."""
    world.node.memory_total = 64 * GiB
    size = 40 * GiB
    world.kube.put(
        PODS,
        {
            "metadata": {
                "name": "berth-holds-a",
                "namespace": "berth-system",
                "uid": "pod-a",
                "labels": {"app.kubernetes.io/managed-by": "berth", "berth.dev/holds": "a" * 63},
                "annotations": {"berth.dev/holds": "a" * 64, "berth.dev/holds-bytes": str(size)},
            },
            "spec": {"nodeName": NODE},
            "status": {"phase": "Running"},
        },
    )
    world.runner(claim={"host": 30 * GiB})
    async with world.agent():
        await world.until(lambda: world.status().admission, "a decision")
        refused = world.status().admission
    assert (refused.state, refused.reason) == ("Refused", "HostMemory")


def fetch_state(world: World) -> str | None:
    fetch = world.status().fetch
    return fetch.state if fetch else None


def state_of(world: World, name: str = "llama-0") -> str | None:
    health = world.status(name).health
    return health.state if health else None


def order(since: str) -> dict[str, str]:
    return {"reason": "MakeRoom", "since": since, "deadline": "2026-01-01T01:00:00Z"}
