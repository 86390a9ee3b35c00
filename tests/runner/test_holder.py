"""Is a file really locked in memory, charged to its holder, and let go at the end?"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from berth.runner import holder
from berth.runner.holder import Held, HoldError

SIZE = 3 << 20


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(SIZE))
    os.sync()
    return path


def locked_kib(pid="self"):
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmLck"))


def test_every_page_is_locked_piece_by_piece_and_let_go(file, monkeypatch):
    monkeypatch.setattr(holder, "PIECE", 1 << 20)
    before = locked_kib()
    held = Held(str(file))
    assert held.lock()
    assert (held.locked, locked_kib() - before) == (SIZE, SIZE >> 10)
    held.close()
    assert locked_kib() == before


def test_between_two_pieces_a_signal_is_obeyed(file, monkeypatch):
    monkeypatch.setattr(holder, "PIECE", 1 << 20)
    told = iter([False, True])
    held = Held(str(file))
    assert not held.lock(lambda: next(told))
    assert held.locked == 1 << 20
    held.close()


def test_without_the_right_to_lock_the_error_says_what_it_takes(file):
    code = (
        "import resource, sys; from berth.runner.holder import Held, HoldError\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))\n"
        "held = Held(sys.argv[1])\n"
        "try: held.lock()\n"
        "except HoldError as err: print(err)"
    )
    command = [sys.executable, "-c", code, str(file)]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "it takes CAP_IPC_LOCK" in done.stdout, done.stderr


def test_an_empty_file_is_no_weights(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(HoldError, match="is empty"):
        Held(str(tmp_path / "empty"))


def test_the_program_holds_until_it_is_told_to_end(file):
    command = [sys.executable, "-m", "berth.runner.holder", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == f"info: holder: {SIZE} bytes of {file} are held\n"
        assert locked_kib(running.pid) == SIZE >> 10
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=20) == 0


def test_a_file_that_is_not_there_is_an_error_with_its_name(tmp_path):
    command = [sys.executable, "-m", "berth.runner.holder", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "none" in done.stdout) == (1, True)
