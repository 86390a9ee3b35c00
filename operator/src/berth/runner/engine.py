"""How is the engine started, signalled and reaped, and its output read?"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import IO

from berth.runner.config import VARIABLE, RunnerConfig
from berth.runner.logs import LINE_LIMIT, Line, read_line

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class Engine:
    """One engine process in a session and process group of its own.

    It must be started from the main thread: the kernel ties PR_SET_PDEATHSIG to the thread that
    forked, and would kill the engine when that thread ends.
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._process = subprocess.Popen(
            config.engine,
            env=engine_environment(config),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # no other thread runs yet
        )
        self.pid = self._process.pid

    def relay(self, tell: Callable[[Line], None]) -> threading.Thread:
        """Hand every line of output to ``tell``, from a thread that ends with the output."""
        pipe = self._process.stdout
        assert pipe is not None
        reader = threading.Thread(target=_read, args=(pipe, tell), name="log", daemon=True)
        reader.start()
        return reader

    def terminate(self) -> None:
        """Ask the engine's first process to end; it tells its own children."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill everything in the engine's process group, what outlived its leader too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def forget(self, status: int) -> None:
        """Tell `subprocess` that the process was reaped elsewhere, so that it does not warn."""
        self._process.returncode = status


def engine_environment(config: RunnerConfig) -> dict[str, str]:
    """The container's own variables without the runner's, then those meant for the engine."""
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return inherited | dict(config.env)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The mask is inherited through exec: an engine must get its SIGTERM.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})


def _read(pipe: IO[bytes], tell: Callable[[Line], None]) -> None:
    # readline with a bound: an engine that never ends its line must not fill the memory.
    with pipe:
        while chunk := pipe.readline(LINE_LIMIT * 4):
            tell(read_line(chunk.decode(errors="replace")))


def reap_all(engine_pid: int) -> int | None:
    """Reap every child that has ended. As PID 1 those include strangers' orphans.

    Returns the engine's status (negative: the signal) if it was among them.
    """
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == engine_pid:
            found = os.waitstatus_to_exitcode(status)


def drop_page_cache(paths: tuple[str, ...]) -> list[str]:
    """Let the kernel forget clean pages of the files (no right needed); those it could not open.

    Pages that a process has mapped stay: what the engine still reads is not lost.
    """
    failed = []
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            failed.append(path)
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return failed
