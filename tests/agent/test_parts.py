"""Policy, journal, host paths, what has gone, measurement, and the health port."""

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from berth.agent.cgroups import PodFigures
from berth.agent.engines import find_engines
from berth.agent.gpus import Gpu, GpuProcess, GpuSample
from berth.agent.guard import Orders, victim
from berth.agent.host import HostMemory, MemInfo, Process
from berth.agent.journal import Journal
from berth.agent.lastbusy import LastBusy
from berth.agent.live import Measured, Sample, measured
from berth.agent.memory import CpuUse, next_memory, with_lost
from berth.agent.paths import Paths, path_of, resolve
from berth.agent.returning import WAIT_S, Leaver, still_away
from berth.agent.serve import serving
from berth.api.model import Model
from berth.api.residency import Residency
from berth.api.runner import DeviceUse, MemoryUse
from berth.planner.state import Claim, Stage
from berth.policy import governing, policy_of
from berth.units import Bytes, GiB
from fakes.gguf import sparse_llama
from fakes.node import FakeGpu, FakeNode, Holding


def residency(name: str, priority: int = 0, **selector: str) -> Residency:
    spec = {"nodeSelector": selector, "priority": priority}
    return Residency.model_validate({"metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        pytest.param([], None, id="none"),
        pytest.param([residency("all")], "all", id="an empty selector is every node"),
        pytest.param([residency("b"), residency("a")], "a", id="ties go to the first name"),
        pytest.param([residency("a"), residency("b", 5)], "b", id="priority"),
        pytest.param(
            [residency("a", 9, zone="z"), residency("b")], "b", id="a selector that differs"
        ),
    ],
)
def test_which_residency_governs(rows, want):
    found = governing(rows, {"zone": "y"})
    assert (found.metadata.name if found else None) == want


def test_what_a_residency_says():
    spec = {
        "host": {"reserve": "2Gi"},
        "gpu": {"reserve": "1Gi", "devices": ["0"]},
        "claims": [{"name": "db", "memory": "4Gi"}, {"name": "x", "memory": "1Gi"}],
    }
    policy = policy_of(Residency.model_validate({"spec": spec}), host_reserve=Bytes(GiB))
    assert (policy.host_reserve, policy.gpu_reserve) == (2 * GiB, GiB)
    assert (policy.devices, policy.claims) == (frozenset({"0"}), 5 * GiB)
    assert policy_of(None, host_reserve=Bytes(3 * GiB)).host_reserve == 3 * GiB


# -- journal -----------------------------------------------------------------------------------


def test_the_journal_rotates_outlives_restarts_and_leaves_out_torn_lines(tmp_path: Path):
    for number in range(50):
        Journal(tmp_path, lambda: "now", limit=1000).note("admission", number=number)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"at": "now", "ki')
    Journal(tmp_path, lambda: "now", limit=1000).note("admission", number=50)
    rows = Journal(tmp_path, lambda: "now").read()
    assert [row["number"] for row in rows][-1] == 50
    assert len(list(tmp_path.iterdir())) == 2
    assert all(path.stat().st_size <= 1100 for path in tmp_path.iterdir())


def test_a_journal_that_cannot_be_written_is_not_in_the_way(tmp_path: Path):
    (tmp_path / "file").write_text("")
    Journal(tmp_path / "file", lambda: "now").note("admission")


# -- host paths --------------------------------------------------------------------------------


def model(host_path: str, path: str) -> Model:
    source = {"path": {"hostPath": host_path, "path": path}}
    return Model.model_validate({"metadata": {"name": "m"}, "spec": {"source": source}})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host: /data/models is allowed, /secret is not."""
    root = tmp_path / "host"
    (root / "data/models/sub").mkdir(parents=True)
    (root / "data/models-not").mkdir()
    (root / "secret").mkdir()
    (root / "secret/key.gguf").write_text("k")
    sparse_llama(root / "data/models/m.gguf", weights=1 << 20)
    (root / "data/models/out.gguf").symlink_to("../../secret/key.gguf")
    (root / "data/models/abs.gguf").symlink_to("/etc/passwd")
    (root / "data/models/in.gguf").symlink_to("m.gguf")
    return root


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/data/models/m.gguf", True),
        ("/data/models/in.gguf", True),
        ("/data/models/missing.gguf", True),
        ("/data/models", True),
        ("/data/models/out.gguf", False),
        ("/data/models/abs.gguf", False),
        ("/data/models/../../secret/key.gguf", False),
        ("/data/models-not/x", False),
        ("/secret/key.gguf", False),
        ("/etc/passwd", False),
        ("data/models/m.gguf", False),
        ("", False),
    ],
)
def test_which_paths_are_looked_at(root: Path, path: str, allowed: bool):
    assert (resolve(path, ["/data/models"], str(root)) is not None) is allowed
    assert resolve(path, [], str(root)) is None


@pytest.mark.parametrize(
    ("host_path", "path", "want"),
    [
        ("/data", "m.gguf", "/data/m.gguf"),
        ("/data/", "/m.gguf", "/data/m.gguf"),
        ("/data", "../etc/passwd", "/etc/passwd"),
    ],
)
def test_the_path_of_a_model(host_path: str, path: str, want: str):
    assert path_of(model(host_path, path)) == want


async def test_facts_of_an_allowed_path_are_read_and_read_again_when_it_changes(root: Path):
    paths = Paths(str(root))
    models = [model("/data/models", "m.gguf"), model("/secret", "key.gguf")]
    found = await paths.inspect(models, ["/data/models"])
    assert [(entry.path, entry.reason) for entry in found] == [
        ("/data/models/m.gguf", None),
        ("/secret/key.gguf", "HostPathNotAllowed"),
    ]
    facts = found[0].facts
    assert facts is not None
    assert facts.architecture == "llama"
    assert facts.files[0].name == "m.gguf"
    assert json.loads(facts.record)["architecture"] == "llama"
    assert (await paths.inspect(models, ["/data/models"]))[0] is found[0]
    (root / "data/models/m.gguf").write_bytes(b"nonsense that is no header")
    (changed,) = await paths.inspect(models[:1], ["/data/models"])
    assert (changed.facts, changed.reason) == (None, "InvalidGGUF")


# -- what has gone, and what is held -----------------------------------------------------------

LEAVER = Leaver("old", "pod", Claim(), Measured(pids=frozenset({7})), gone_at=100.0)


def sample(*pids: int, at: float = 101.0) -> Sample:
    gpu = Gpu("G", 0, processes=tuple(GpuProcess(pid, Bytes(1)) for pid in pids))
    return Sample(HostMemory(Bytes(GiB), Bytes(GiB)), GpuSample((gpu,)), at=at)


@pytest.mark.parametrize(
    ("figures", "now", "want"),
    [
        pytest.param(None, sample(), False, id="nothing left"),
        pytest.param(PodFigures(Bytes(0), Bytes(0)), sample(), False, id="an empty cgroup"),
        pytest.param(
            PodFigures(Bytes(1), Bytes(0), frozenset({7})), sample(), True, id="a process"
        ),
        pytest.param(None, sample(7), True, id="still on the device"),
        pytest.param(None, sample(8), False, id="somebody else on the device"),
        pytest.param(None, sample(7, at=100 + WAIT_S), False, id="not for ever"),
    ],
)
def test_when_memory_is_back(figures, now, want):
    assert still_away(LEAVER, figures, now) is want


def test_a_pod_is_measured_by_its_own_processes():
    figures = PodFigures(Bytes(5), Bytes(9), frozenset({1, 2}))
    gpus = (
        Gpu("a", 0, processes=(GpuProcess(1, Bytes(3)), GpuProcess(9, Bytes(50)))),
        Gpu("b", 1, processes=(GpuProcess(2, None),)),
        Gpu("c", 2, processes=None),
        Gpu("d", 3, processes=()),
    )
    found = measured(figures, gpus)
    assert (found.host, found.devices) == (5, {"a": 3, "d": 0})


def test_on_a_unified_board_a_pod_is_measured_by_what_the_driver_tells():
    figures = PodFigures(Bytes(5), Bytes(9), frozenset({1}))
    told = Gpu("a", 0, unified=True, processes=(GpuProcess(1, Bytes(3)), GpuProcess(2, Bytes(9))))
    silent = Gpu("a", 0, unified=True, processes=(GpuProcess(1, None),))
    assert measured(figures, (told,)).shared == 3
    assert measured(figures, (silent,)).shared is None
    assert measured(figures, (told,)).devices == {}


@pytest.mark.parametrize(
    ("shared", "lost", "want"),
    [
        pytest.param(0, 99, 5, id="no unified board: the cgroup's word"),
        pytest.param(3, None, 8, id="the driver tells"),
        pytest.param(3, 20, 20, id="MemAvailable lost more than that"),
        pytest.param(30, 20, 35, id="it has grown since the load"),
        pytest.param(None, 20, 20, id="the driver does not tell"),
        pytest.param(None, None, None, id="nobody knows"),
    ],
)
def test_what_a_runner_on_a_unified_board_holds(shared, lost, want):
    held = Measured(host=Bytes(5), shared=None if shared is None else Bytes(shared))
    assert with_lost(held, lost).host == want


def test_engines_are_found_by_process_and_by_what_computes():
    node = FakeNode(devices=[FakeGpu("G", 0)])
    commands = {
        1: "python3 -m vllm.entrypoints.openai.api_server --api-key s3cret",
        2: "/usr/bin/llama-server -m x",
        3: "vim llama-server.txt",
        4: "/opt/venv/bin/python /opt/venv/bin/vllm serve m",
        5: "trainer",
    }
    node.others = [Process(pid, f"p{pid}", command) for pid, command in commands.items()]
    node.pods["own"] = Holding(devices={"G": 1}, pid=6)
    sample = GpuSample((Gpu("G", 0, processes=(GpuProcess(5, None), GpuProcess(6, None))),))
    found = find_engines(node, sample)
    assert [engine.words for engine in found] == [
        "p1 (pid 1)", "p2 (pid 2)", "p4 (pid 4)", "p5 (pid 5)", "llama-server (pid 6)",
    ]  # fmt: skip
    assert [engine.pod_uid for engine in found][-1] == "own"
    assert [engine.is_claimed(["trainer", ""]) for engine in found] == [False] * 3 + [True, False]


def test_of_processes_that_cannot_be_seen_nothing_is_measured():
    figures = PodFigures(Bytes(5), Bytes(9), frozenset({0}))
    assert measured(figures, (Gpu("a", 0),)).devices == {}


def test_peaks_are_kept_and_unknown_figures_change_nothing():
    first = next_memory(
        None, Measured(host=Bytes(5), devices={"a": Bytes(9), "z": Bytes(0)}), ["a"]
    )
    assert first == MemoryUse(host=5, host_peak=5, devices=[DeviceUse(device="a", used=9, peak=9)])
    second = next_memory(first, Measured(host=Bytes(3), devices={}), ["a"])
    assert (second.host, second.host_peak, second.devices) == (3, 5, first.devices)


def test_computing_is_told_by_processor_time():
    first = CpuUse().next(10.0, at=100.0)
    second = first.next(12.0, at=102.0)
    third = second.next(12.1, at=104.0)
    assert [use.is_busy for use in (first, second, third)] == [False, True, False]
    assert not third.next(None, at=106.0).is_busy


# -- guard -------------------------------------------------------------------------------------


def work(name: str, held: int = 0, *, up: bool = False, pod: bool = True, busy: int = 0):
    """As much of a RunnerWork as the guard looks at; its Model's uid is ``m-NAME``."""
    return SimpleNamespace(
        uid=name,
        pod="pod" if pod else None,
        stage=Stage.UP if up else Stage.STARTING,
        seen=SimpleNamespace(held=Measured(host=Bytes(held)), pulse=SimpleNamespace(busy=busy)),
        runner=SimpleNamespace(spec=SimpleNamespace(model_ref=SimpleNamespace(uid=f"m-{name}"))),
    )


EVICT = Orders(Bytes(10), evicts_idle=True, pinned=frozenset({"m-pinned"}))
LAST = {"early": 1.0, "late": 2.0, "pinned": 0.5, "busy": 0.5}


@pytest.mark.parametrize(
    ("works", "orders", "want"),
    [
        pytest.param([], EVICT, None, id="nobody"),
        pytest.param([work("up", 9, up=True)], Orders(Bytes(10)), None, id="what is up stays"),
        pytest.param([work("none", 9, pod=False)], EVICT, None, id="nothing runs of it"),
        pytest.param([work("a", 1), work("b", 9), work("c", 3)], EVICT, "b", id="the largest load"),
        pytest.param(
            [work("early", up=True), work("load", 1)], EVICT, "load", id="a load before the idle"
        ),
        pytest.param(
            [work("late", up=True), work("early", up=True), work("busy", up=True, busy=1)],
            EVICT,
            "early",
            id="EvictIdle: who was busy longest ago, and nobody who is",
        ),
        pytest.param(
            [work("pinned", up=True), work("late", up=True)], EVICT, "late", id="pinned ones stay"
        ),
        pytest.param(
            [work("late", up=True), work("never", up=True)],
            EVICT,
            "never",
            id="who has never worked comes first",
        ),
    ],
)
def test_whom_the_guard_ends(works, orders, want):
    found = victim(works, orders, LAST)
    assert (found.uid if found else None) == want


def test_the_order_of_use_outlives_the_agent(tmp_path):
    before = LastBusy(tmp_path / "journal" / "last-busy.json")
    before.note("a", 100.0)
    before.note("a", 110.0)
    before.note("b", 200.0)
    after = LastBusy(tmp_path / "journal" / "last-busy.json")
    assert after.moments == {"a": 110.0, "b": 200.0}
    after.keep_only(["b"])
    assert after.moments == {"b": 200.0}


def test_a_look_at_the_memory_takes_no_memory():
    gauge = MemInfo(Path("/proc/meminfo"))
    assert gauge.available() > 0
    tracemalloc.start()
    try:
        for _ in range(1000):
            gauge.available()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (held < 2048, peak < 4096) == (True, True), (held, peak)


# -- health port -------------------------------------------------------------------------------


async def test_the_health_port():
    registry, missing = CollectorRegistry(), ["watches"]
    Counter("berth_test", "x", registry=registry).inc()
    async with (
        serving(0, registry=registry, ready=lambda: "".join(missing), host="127.0.0.1") as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        assert (await client.get("/healthz")).status_code == 200
        assert ((r := await client.get("/readyz")).status_code, r.text) == (503, "watches\n")
        missing.clear()
        assert (await client.get("/readyz")).status_code == 200
        assert "berth_test_total 1.0" in (await client.get("/metrics")).text
