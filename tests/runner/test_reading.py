"""Are engines' words, statuses, pages and the kernel's files read for what they are?"""

import json
import shutil
import subprocess

import pytest

from berth.runner.checks import Seen, refuse_start
from berth.runner.config import (
    BadConfigError,
    DeviceNeed,
    FileCheck,
    RunnerConfig,
    parse_config,
    render_config,
)
from berth.runner.devices import NoDriverError, SeenDevice, seen_devices
from berth.runner.exits import ExitCode
from berth.runner.logs import Line, Tail, read_line
from berth.runner.machine import State, Why
from berth.runner.memory import available_bytes, oom_kills
from berth.runner.probe import read_gauges, read_slots
from berth.runner.report import TOTAL_LIMIT, render_report
from berth.runner.verdict import Ending, Verdict, judge_ending


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "0.05.532.655 I srv  llama_server: model loaded\n",
            "info: srv: llama_server: model loaded",
        ),
        (
            "0.00.018.748 E llama_model_load: error loading model: x",
            "error: llama: llama_model_load: error loading model: x",
        ),
        (
            "0.00.879.411 W load: control-looking token:    212",
            "warning: llama: load: control-looking token:    212",
        ),
        (
            "error: invalid argument: --nonsense",
            "error: engine: error: invalid argument: --nonsense",
        ),
        (
            "INFO 01-02 03:04:05 [api_server.py:77] Started",
            "info: api_server.py: Started",
        ),
        (
            "(EngineCore_0 pid=12) ERROR 01-02 03:04:05 [core.py:7] died",
            "error: core.py: died",
        ),
        ("ggml.c:12: GGML_ASSERT(x) failed", "error: engine: ggml.c:12: GGML_ASSERT(x) failed"),
        ("hello", "info: engine: hello"),
    ],
)
def test_a_line_of_any_engine_becomes_level_category_message(text, line):
    assert str(read_line(text)) == line


def test_the_tail_never_tells_what_a_request_said():
    tail = Tail()
    tail.add(Line("info", "srv", "loading model '/m.gguf'"))
    tail.is_private = True
    secret = "my PIN is 1234"
    for line in (
        Line("info", "srv", f"prompt: {secret}"),
        Line("debug", "srv", secret),
        Line("error", "slot", secret),
        Line("warning", "srv", f'got exception: {{"error": {{"message": "last read: {secret}"}}}}'),
        Line("error", "engine", f"cannot parse '{secret}' at 3"),
    ):
        tail.add(line)
    assert tail.lines() == [
        "info: srv: loading model '/m.gguf'",
        "warning: srv: got exception: …",
        "error: engine: cannot parse … at 3",
    ]


def test_the_tail_is_bounded_and_keeps_the_newest():
    tail = Tail()
    for index in range(100):
        tail.add(Line("info", "x", f"{index} " + "é" * 100))
    kept = tail.lines()
    assert kept[-1].startswith("info: x: 99 ")
    assert len("\n".join(kept).encode()) <= 2048


def ending(status, *, said="", up=False, why=Why.NOBODY, kills=0):
    return Ending(State(was_up=up, why=why), status, said, kills)


@pytest.mark.parametrize(
    ("case", "code"),
    [
        pytest.param(ending(-9, why=Why.HANG), ExitCode.HANG, id="the agent's word comes first"),
        pytest.param(ending(-9, why=Why.QUIET), ExitCode.OK, id="stopped by us, even by SIGKILL"),
        pytest.param(ending(-9, up=True, kills=1), ExitCode.ENGINE_OOM, id="killed by the kernel"),
        pytest.param(ending(-9, up=True), ExitCode.ENGINE_CRASH, id="kill -9 by somebody else"),
        pytest.param(ending(-11, up=True, kills=1), ExitCode.ENGINE_CRASH, id="a crash beside OOM"),
        pytest.param(
            ending(1, said="cudaMalloc failed: out of memory"), ExitCode.ENGINE_OOM, id="device OOM"
        ),
        pytest.param(
            ending(1, said="error: invalid argument: --x"), ExitCode.BAD_FLAGS, id="llama flag"
        ),
        pytest.param(
            ending(2, said="vllm: error: unrecognized arguments: --x"),
            ExitCode.BAD_FLAGS,
            id="vLLM flag",
        ),
        pytest.param(ending(1, said="failed to load model"), ExitCode.LOAD_FAILED, id="bad file"),
        pytest.param(ending(0), ExitCode.LOAD_FAILED, id="it must not end with 0 by itself"),
        pytest.param(ending(0, up=True), ExitCode.ENGINE_CRASH, id="nor when it is up"),
    ],
)
def test_an_ending_has_one_verdict(case, code):
    assert judge_ending(case).code is code


GPU = DeviceNeed("GPU-a", 100)


def seen(**changes):
    found = {
        "program": True,
        "sizes": {"/m.gguf": 7},
        "devices": (SeenDevice("GPU-a", 100),),
        "driver_error": "",
        "host": 50,
    }
    return Seen(**(found | changes))


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        pytest.param(seen(), None, id="all is there"),
        pytest.param(
            seen(program=False),
            Verdict(ExitCode.ENGINE_MISSING, "no program engine in this image"),
            id="no engine",
        ),
        pytest.param(
            seen(sizes={}),
            Verdict(ExitCode.MISSING_FILE, "/m.gguf: absent, 7 bytes were verified"),
            id="file absent",
        ),
        pytest.param(
            seen(sizes={"/m.gguf": 6}, host=0),
            Verdict(ExitCode.MISSING_FILE, "/m.gguf: 6 bytes, 7 bytes were verified"),
            id="file short, told before memory",
        ),
        pytest.param(
            seen(devices=(SeenDevice("GPU-b", 100),)),
            Verdict(ExitCode.WRONG_DEVICE, "planned on GPU-a; seen here: GPU-b"),
            id="another device",
        ),
        pytest.param(
            seen(devices=(), driver_error="no driver"),
            Verdict(ExitCode.WRONG_DEVICE, "planned on GPU-a; seen here: no driver"),
            id="no driver",
        ),
        pytest.param(
            seen(devices=(SeenDevice("GPU-a", 60),)),
            Verdict(ExitCode.NO_MEMORY, "GPU-a: 100 bytes needed, 60 bytes available, 40 short"),
            id="device full",
        ),
        pytest.param(
            seen(devices=(SeenDevice("GPU-a", None),)), None, id="a unified board has no figure"
        ),
        pytest.param(
            seen(host=49),
            Verdict(ExitCode.NO_MEMORY, "host: 50 bytes needed, 49 bytes available, 1 short"),
            id="host full",
        ),
    ],
)
def test_the_last_look_refuses_with_figures(found, verdict):
    config = RunnerConfig(
        engine=("engine",), port=1, files=(FileCheck("/m.gguf", 7),), devices=(GPU,), host_need=50
    )
    assert refuse_start(config, found) == verdict


def test_room_is_the_smaller_of_machine_and_cgroup_and_clean_pages_count_as_free(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    group = tmp_path / "v2"
    group.mkdir()
    assert available_bytes(tmp_path, group) == 50 * 1024
    (group / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path, group) == 50 * 1024
    (group / "memory.max").write_text("40000\n")
    (group / "memory.current").write_text("30000\n")
    (group / "memory.stat").write_text("anon 10000\nfile 20000\nshmem 5000\n")
    (group / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert available_bytes(tmp_path, group) == 10000 + 15000
    assert oom_kills(tmp_path, group) == 2


def test_cgroup_v1_is_read_too(tmp_path):
    (tmp_path / "meminfo").write_text("MemAvailable: 50 kB\n")
    group = tmp_path / "memory"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text("40000\n")
    (group / "memory.usage_in_bytes").write_text("30000\n")
    (group / "memory.stat").write_text("total_cache 20000\ntotal_shmem 5000\n")
    (group / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")
    assert available_bytes(tmp_path, tmp_path) == 25000
    assert oom_kills(tmp_path, tmp_path) == 1
    (group / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert available_bytes(tmp_path, tmp_path) == 50 * 1024


def test_work_in_hand_is_read_from_gauges_and_slots():
    names = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    page = "# HELP x\nllamacpp:requests_processing 0\nllamacpp:requests_deferred {}\n"
    assert read_gauges(page.format(0), names) is False
    assert read_gauges(page.format(2), names) is True
    assert read_gauges(
        'vllm:num_requests_running{model_name="a b"} 1.0\n', ("vllm:num_requests_running",)
    )
    assert read_gauges("nothing 1\n", names) is None
    assert read_slots('[{"is_processing": false}, {"is_processing": true}]') is True
    assert read_slots('[{"is_processing": false}]') is False
    assert read_slots('{"error": "no"}') is None


def test_a_configuration_survives_the_wire():
    config = RunnerConfig(
        engine=("llama-server", "-m", "/models/a b.gguf"),
        port=8080,
        env={"A": "1"},
        devices=(GPU,),
        files=(FileCheck("/models/a b.gguf", 3),),
        drop_cache=("/models/a b.gguf",),
        drain_timeout_s=12.5,
    )
    assert parse_config(render_config(config)) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"engine": ["x"], "port": 1, "hostneed": 5}', "unknown keys: hostneed"),
        ('{"engine": "x", "port": 1}', "list of arguments"),
        ('{"engine": ["x"]}', "port"),
    ],
)
def test_a_bad_configuration_names_its_fault(text, said):
    with pytest.raises(BadConfigError, match=said):
        parse_config(text)


def test_the_drain_leaves_time_for_sessions_and_the_stop():
    config = RunnerConfig(engine=("x",), port=1, drain_timeout_s=300, termination_grace_s=100)
    assert config.drain_limit_s == 100 - 60 - 20


def test_the_report_fits_what_kubernetes_keeps():
    verdict = Verdict(ExitCode.ENGINE_OOM, "x" * 5000)
    text = render_report(verdict, -9, ["é" * 2000, "last"])
    assert len(text.encode()) <= TOTAL_LIMIT
    report = json.loads(text)
    assert (report["reason"], report["exitCode"], report["signal"]) == ("EngineOOM", 15, 9)
    assert report["lines"] == ["last"] or report["lines"][-1] == "last"


def test_reasons_are_unique_words():
    reasons = [code.reason for code in ExitCode]
    assert len(set(reasons)) == len(reasons)
    assert all(reason.isalpha() and reason[0].isupper() for reason in reasons)


def test_a_machine_without_the_driver_says_so():
    with pytest.raises(NoDriverError, match="libnothing"):
        seen_devices("libnothing.so.1")


NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) {
  strncpy(s, h == (void *)1 ? "GPU-a" : "GPU-b", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) {
  if (h == (void *)2) return 3; /* NVML_ERROR_NOT_SUPPORTED: unified memory */
  m[0] = 24ULL << 30; m[1] = 20ULL << 30; m[2] = 4ULL << 30; return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_devices_are_read_through_the_drivers_own_interface(tmp_path):
    source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert seen_devices(str(library)) == [SeenDevice("GPU-a", 20 << 30), SeenDevice("GPU-b", None)]
