"""Does the real program, with a real child process, keep the runner's promises?"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from berth.runner.exits import ExitCode

TESTS = Path(__file__).parents[1]
DEADLINE_S = 60
PR_SET_CHILD_SUBREAPER = 36


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, condition):
    """Poll a condition until it is true; says what it waited for when it never is."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"waited {DEADLINE_S} s for {what}")


class Running:
    """A runner process, its control port and what it wrote."""

    def __init__(self, folder, engine, **config):
        self.log = folder / "termination-log"
        self.out = folder / "out"
        self.port, self.control = free_port(), free_port()
        settings = {
            "engine": [part.replace("PORT", str(self.port)) for part in engine],
            "env": {"PYTHONPATH": str(TESTS)},
            "port": self.port,
            "controlPort": self.control,
            "controlHost": "127.0.0.1",
            "quiet": 0.5,
            "terminationLog": str(self.log),
        }
        self._out = self.out.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "berth.runner"],
            env={**os.environ, "BERTH_RUNNER": json.dumps({**settings, **config})},
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )

    def status(self, path="/health"):
        """Code and body of the control port; (0, {}) while nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.control}{path}", timeout=5) as got:
                return got.status, json.load(got)
        except urllib.error.HTTPError as err:
            return err.code, json.load(err)
        except OSError:
            return 0, {}

    def wait_status(self, word):
        wait_for(f"status {word}", lambda: self.status()[1].get("status") == word)

    def wait(self):
        """Exit code and the termination message."""
        code = self.process.wait(DEADLINE_S)
        return ExitCode(code), json.loads(self.log.read_text())

    def signal(self, number):
        self.process.send_signal(number)

    def text(self):
        return self.out.read_text()


@pytest.fixture
def runner(tmp_path):
    started = []

    def start(*options, engine=None, **config):
        command = [sys.executable, "-m", "fakes.engine", "--port", "PORT", *options]
        running = Running(tmp_path, engine or command, **config)
        started.append(running)
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        running._out.close()


def ask(port, tokens, results):
    """One streamed chat in a thread; appends the number of words and whether [DONE] came."""
    body = json.dumps({"messages": [], "stream": True, "max_tokens": tokens}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )

    def run():
        text = b""
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as got:
            for line in got:
                text += line
        results.append((text.count(b"word"), b"[DONE]" in text))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def in_hand(running):
    url = f"http://127.0.0.1:{running.port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as got:
        rows = dict(line.split() for line in got.read().decode().splitlines())
    return int(rows["llamacpp:requests_processing"]) + int(rows["llamacpp:requests_deferred"])


def running_slots(running):
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/slots", timeout=5) as got:
        return sum(slot["is_processing"] for slot in json.load(got))


def test_starting_then_ok_then_stopped_in_order(runner):
    running = runner("--load-delay", "1")
    wait_for("the control port", lambda: running.status()[0])
    assert running.status() == (503, {"status": "starting"})
    running.wait_status("ok")
    assert running.status()[0] == 200
    running.signal(signal.SIGTERM)
    code, report = running.wait()
    assert code is ExitCode.OK
    assert report["message"].startswith("drained: no work")
    assert "info: srv: load_model: loading model '/fake.gguf'" in running.text()


@pytest.mark.parametrize("metrics", [[], ["--no-metrics"]], ids=["metrics", "slots alone"])
def test_answers_in_flight_finish_with_done_before_the_engine_gets_its_signal(runner, metrics):
    running = runner("--token-delay", "0.05", "--tokens", "40", *metrics)
    running.wait_status("ok")
    results = []
    first = ask(running.port, 20, results)
    wait_for("work in hand", lambda: running_slots(running) == 1)
    running.signal(signal.SIGTERM)
    running.wait_status("draining")
    assert running.status()[0] == 503
    second = ask(running.port, 5, results)
    first.join()
    second.join()
    assert sorted(results) == [(5, True), (20, True)]
    code, report = running.wait()
    assert code is ExitCode.OK
    assert "drained" in report["message"]


def test_a_second_signal_is_obeyed_at_once(runner):
    running = runner("--token-delay", "0.2", "--tokens", "1000")
    running.wait_status("ok")
    results = []
    asked = ask(running.port, 1000, results)
    wait_for("work in hand", lambda: in_hand(running) == 1)
    running.signal(signal.SIGTERM)
    running.wait_status("draining")
    running.signal(signal.SIGTERM)
    code, report = running.wait()
    asked.join()
    assert code is ExitCode.OK
    assert report["message"].startswith("a second signal")
    assert results[0][1] is False


def test_the_drain_timeout_ends_a_drain_and_a_deaf_engine_is_killed(runner):
    running = runner(
        "--token-delay", "0.2", "--tokens", "1000", "--ignore-sigterm",
        drainTimeout=0.5, stopTimeout=0.5,
    )  # fmt: skip
    running.wait_status("ok")
    results = []
    asked = ask(running.port, 1000, results)
    wait_for("work in hand", lambda: in_hand(running) == 1)
    running.signal(signal.SIGTERM)
    code, report = running.wait()
    asked.join()
    assert code is ExitCode.OK
    assert report["signal"] == signal.SIGKILL
    assert "drain timeout" in report["message"]


def test_stopped_before_it_is_up(runner):
    running = runner("--load-delay", "600")
    running.wait_status("starting")
    wait_for("the engine", lambda: "loading model" in running.text())
    running.signal(signal.SIGTERM)
    code, report = running.wait()
    assert (code, report["message"].split(";")[0]) == (ExitCode.OK, "stopped before it was up")


def test_a_crash_in_the_middle_of_an_answer(runner):
    running = runner("--crash-after", "3")
    running.wait_status("ok")
    ask(running.port, 10, []).join()
    code, report = running.wait()
    assert code is ExitCode.ENGINE_CRASH
    assert report["signal"] == signal.SIGSEGV
    assert report["reason"] == "EngineCrash"


def test_the_agent_calls_a_hang(runner):
    running = runner("--hang-after", "3", "--ignore-sigterm")
    running.wait_status("ok")
    asked = ask(running.port, 10, [])
    wait_for("work in hand", lambda: in_hand(running) == 1)
    running.signal(signal.SIGUSR1)
    code, _ = running.wait()
    asked.join()
    assert code is ExitCode.HANG


@pytest.mark.parametrize(
    ("options", "config", "code"),
    [
        pytest.param(
            ["--exit-code-at-start", "1", "--last-words", "error: invalid argument: --x"],
            {},
            ExitCode.BAD_FLAGS,
            id="bad flags",
        ),
        pytest.param(
            ["--exit-code-at-start", "1", "--last-words", "cudaMalloc failed: out of memory"],
            {},
            ExitCode.ENGINE_OOM,
            id="device out of memory",
        ),
        pytest.param(
            ["--exit-code-at-start", "1", "--last-words", "failed to load model"],
            {},
            ExitCode.LOAD_FAILED,
            id="a file that is no model",
        ),
        pytest.param([], {"hostNeed": 1 << 60}, ExitCode.NO_MEMORY, id="no memory"),
        pytest.param(
            [],
            {"files": [{"path": "/nowhere.gguf", "size": 1}]},
            ExitCode.MISSING_FILE,
            id="missing file",
        ),
        pytest.param(
            [],
            {"devices": [{"uuid": "GPU-not-here", "need": 1}]},
            ExitCode.WRONG_DEVICE,
            id="wrong device",
        ),
        pytest.param([], {"engine": ["/no/engine"]}, ExitCode.ENGINE_MISSING, id="no engine"),
    ],
)
def test_each_failure_has_its_own_exit_code(runner, options, config, code):
    got, report = runner(*options, **config).wait()
    assert got is code
    assert (report["reason"], report["exitCode"]) == (code.reason, int(code))


def test_a_control_port_that_is_taken_is_told_before_the_engine_starts(runner):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        running = runner(controlPort=taken.getsockname()[1])
        code, report = running.wait()
    assert code is ExitCode.BAD_CONFIG
    assert "control port" in report["message"]
    assert "loading model" not in running.text()


def memory_cgroup(name):
    """A cgroup below our own, limited to 160 MiB; None where that is not allowed."""
    rows = [row.split(":", 2) for row in Path("/proc/self/cgroup").read_text().splitlines()]
    v1 = [path for _, controllers, path in rows if controllers == "memory"]
    base = Path("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup")
    own = base / (v1[0] if v1 else rows[0][2]).strip("/")
    folder = (own if own.is_dir() else base) / name
    limit = "memory.limit_in_bytes" if v1 else "memory.max"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(160 << 20))
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    return folder


GREEDY = "import time; x = bytearray(400 << 20); time.sleep(600)"


def test_an_engine_that_the_kernel_kills_for_memory(tmp_path):
    folder = memory_cgroup(f"berth-test-{os.getpid()}")
    if folder is None:
        pytest.skip("no right to make a memory cgroup here")
    log = tmp_path / "termination-log"
    config = {
        "engine": [sys.executable, "-c", GREEDY],
        "port": free_port(),
        "controlPort": free_port(),
        "controlHost": "127.0.0.1",
        "terminationLog": str(log),
    }
    enter = f"echo $$ > {folder}/cgroup.procs && exec {sys.executable} -m berth.runner"
    try:
        ended = subprocess.run(
            ["sh", "-c", enter],
            env={**os.environ, "BERTH_RUNNER": json.dumps(config)},
            check=False,
            timeout=DEADLINE_S,
        )
        report = json.loads(log.read_text())
    finally:
        wait_for("the cgroup to be empty", lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()
    assert ended.returncode == ExitCode.ENGINE_OOM
    assert report["signal"] == signal.SIGKILL
    assert report["message"].startswith("the kernel killed the engine for memory")


def test_without_a_configuration_it_says_so():
    ended = subprocess.run(
        [sys.executable, "-m", "berth.runner"],
        env={k: v for k, v in os.environ.items() if k != "BERTH_RUNNER"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert ended.returncode == ExitCode.BAD_CONFIG
    assert "BERTH_RUNNER is not set" in ended.stderr


ORPHAN = """
import os, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(0.2)
    os._exit(0)
print("orphaned", flush=True)
time.sleep(600)
"""


def children(pid):
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()]


def state_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return "gone"


def test_as_the_reaper_it_leaves_no_zombie(runner, tmp_path):
    # A subreaper inherits orphans just as PID 1 does; the flag survives no fork, so the wrapper
    # sets it on itself and then becomes the runner by exec.
    script = tmp_path / "reaper.py"
    script.write_text(
        "import ctypes, os, sys\n"
        f"ctypes.CDLL(None).prctl({PR_SET_CHILD_SUBREAPER}, 1)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'berth.runner'])\n"
    )
    log = tmp_path / "termination-log"
    config = {
        "engine": [sys.executable, "-c", ORPHAN],
        "port": free_port(),
        "controlPort": free_port(),
        "controlHost": "127.0.0.1",
        "terminationLog": str(log),
    }
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "BERTH_RUNNER": json.dumps(config)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for("the orphan", lambda: "orphaned" in process.stdout.readline())
        engine = wait_for(
            "one child", lambda: len(children(process.pid)) == 1 and children(process.pid)
        )[0]
        # The orphan may arrive, and end, after the engine was seen alone.
        wait_for("no zombie and no orphan", lambda: children(process.pid) == [engine])
        process.kill()
        process.wait()
        wait_for("the engine to die with its parent", lambda: state_of(engine) in ("gone", "Z"))
    finally:
        process.kill()
        process.stdout.close()


def resident_pages(path):
    """How many pages of the file are in the page cache, by mincore(2)."""
    import mmap

    size = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    pages = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        vector = ctypes.create_string_buffer(pages)
        assert libc.mincore(address, size, vector) == 0
        libc.munmap(address, size)
    return sum(byte & 1 for byte in vector.raw)


def test_once_up_the_pages_of_files_that_are_not_read_again_are_dropped(runner, tmp_path):
    weights = tmp_path / "weights"
    weights.write_bytes(os.urandom(1 << 20))
    kept = tmp_path / "kept"
    kept.write_bytes(os.urandom(1 << 20))
    for path in (weights, kept):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            file.read()
    if resident_pages(weights) == 0:
        pytest.skip("mincore tells nothing on this file system")
    running = runner(
        dropCache=[str(weights)], files=[{"path": str(weights), "size": weights.stat().st_size}]
    )
    running.wait_status("ok")
    wait_for("the cache to be dropped", lambda: resident_pages(weights) == 0)
    assert resident_pages(kept) > 0


SMOKE = {"path": "/v1/chat/completions", "body": '{"messages":[],"stream":true,"max_tokens":4}'}


def test_up_only_after_a_good_answer(runner):
    running = runner("--token-delay", "0.2", smoke=SMOKE)
    running.wait_status("testing")
    assert running.status()[0] == 503
    running.wait_status("ok")
    running.signal(signal.SIGTERM)
    assert running.wait()[0] is ExitCode.OK


def test_an_api_that_nobody_asked_for_need_not_be_spoken(runner):
    running = runner(smoke={**SMOKE, "path": "/v1/none", "asked": False})
    running.wait_status("ok")


@pytest.mark.parametrize(
    ("options", "test", "told"),
    [
        pytest.param([], {"expect": "Paris"}, "does not contain 'Paris'", id="the wrong words"),
        pytest.param(["--hang-after", "1"], {"timeout": 1}, "within 1 s", id="no end"),
        pytest.param([], {"path": "/v1/none"}, "answered 404", id="not an API that it has"),
    ],
)
def test_an_engine_with_a_bad_answer_is_ended(runner, options, test, told):
    running = runner(*options, smoke={**SMOKE, **test})
    code, report = running.wait()
    assert code is ExitCode.SMOKE_FAILED
    assert told in report["message"]
