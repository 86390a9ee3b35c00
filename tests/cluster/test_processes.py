"""Are programs of a cluster found again, ended and started again, and strangers left alone?"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from cluster.problem import Problem
from cluster.processes import ProcessTable, start_time

SLEEPER = [sys.executable, "-c", "import time; print('awake', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('awake', flush=True); time.sleep(600)",
]


@pytest.fixture
def table(tmp_path: Path):
    table = ProcessTable(tmp_path)
    yield table
    for name in table.names():
        table.stop(name, grace_s=0)


def awake(table: ProcessTable, name: str) -> bool:
    return "awake" in table.log(name).read_text()


def test_a_started_program_is_found_by_another_table_of_the_same_folder(table: ProcessTable):
    started = table.start("sleeper", SLEEPER)
    assert ProcessTable(table.state_dir).find("sleeper") == started
    assert started.is_running


def test_starting_twice_starts_once(table: ProcessTable):
    assert table.start("sleeper", SLEEPER) == table.start("sleeper", SLEEPER)


def test_stop_ends_a_program_that_ignores_sigterm(table: ProcessTable):
    process = table.start("stubborn", STUBBORN)
    table.wait_until(
        lambda: awake(table, "stubborn"), what="it is awake", process="stubborn", deadline_s=20
    )
    table.stop("stubborn", grace_s=0.1)
    assert not process.is_running
    assert table.names() == []


def test_restart_after_a_kill_runs_the_same_program_with_another_pid(table: ProcessTable):
    first = table.start("sleeper", SLEEPER, env={"WHO": "test"})
    table.kill("sleeper")
    second = table.restart("sleeper")
    assert (second.argv, second.env) == (first.argv, first.env)
    assert second.pid != first.pid
    assert second.is_running


def test_a_recycled_pid_is_never_signalled(table: ProcessTable):
    """The file names this very test program, but as one that started at another time."""
    table.start("sleeper", SLEEPER)
    table.kill("sleeper")
    path = table.state_dir / "run" / "sleeper.json"
    said = json.loads(path.read_text())
    own_start = start_time(os.getpid())
    assert own_start is not None
    path.write_text(json.dumps(said | {"pid": os.getpid(), "started": own_start - 1}))
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        table.stop("sleeper", grace_s=0.1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == []


def test_waiting_for_a_program_that_dies_says_so_with_its_last_words(table: ProcessTable):
    table.start("dies", [sys.executable, "-c", "raise SystemExit('no room in the harbour')"])
    began = time.monotonic()
    with pytest.raises(Problem, match=r"(?s)dies ended before it is up.*no room in the harbour"):
        table.wait_until(lambda: False, what="it is up", process="dies", deadline_s=60)
    assert time.monotonic() - began < 30


def test_waiting_in_vain_says_for_what(table: ProcessTable):
    table.start("sleeper", SLEEPER)
    with pytest.raises(Problem, match="waited 0 s in vain: pigs fly"):
        table.wait_until(lambda: False, what="pigs fly", process="sleeper", deadline_s=0.1)
