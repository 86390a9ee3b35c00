"""Which programs did this cluster start, are they still the same ones, and how are they ended?

A process is known by its id *and* its start time: an id that the kernel gave to another program
since is never signalled.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cluster.problem import Problem

POLL_S = 0.05
LOG_TAIL_LINES = 12

# Children of this very program, by id, so that they can be reaped; another's are its own to reap.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Process:
    """A program that we started; what is needed to find it, to end it and to start it again."""

    name: str
    pid: int
    started: int
    """Clock ticks since boot, field 22 of /proc/PID/stat."""
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    """Only what was added to the environment of the program that started it."""

    @property
    def is_running(self) -> bool:
        return start_time(self.pid) == self.started


@dataclass(frozen=True)
class ProcessTable:
    """The programs of one cluster, kept as one file each below `state_dir/run`."""

    state_dir: Path

    def log(self, name: str) -> Path:
        return self.state_dir / "log" / f"{name}.log"

    def names(self) -> list[str]:
        return sorted(path.stem for path in (self.state_dir / "run").glob("*.json"))

    def find(self, name: str) -> Process | None:
        path = self._file(name)
        return Process(**json.loads(path.read_text())) if path.exists() else None

    def is_running(self, name: str) -> bool:
        found = self.find(name)
        return found is not None and found.is_running

    def start(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> Process:
        """Starts it in a session of its own, so that a Ctrl-C in the terminal does not end it."""
        found = self.find(name)
        if found and found.is_running:
            return found
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                list(argv),
                env=os.environ | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _children[child.pid] = child
        process = Process(name, child.pid, start_time(child.pid) or 0, list(argv), dict(env or {}))
        self._file(name).parent.mkdir(parents=True, exist_ok=True)
        self._file(name).write_text(json.dumps(asdict(process)))
        return process

    def stop(self, name: str, *, grace_s: float = 10) -> None:
        """SIGTERM, then SIGKILL once `grace_s` has passed; quiet if it is gone already."""
        found = self.find(name)
        if found:
            _end(found, grace_s=grace_s)
            self._file(name).unlink(missing_ok=True)

    def kill(self, name: str) -> Process:
        """SIGKILL at once, as a crash would; the file stays, so that `restart` knows the program."""
        found = self.find(name)
        if found is None:
            raise Problem(f"{name} was never started here", todo=f"started are: {self.names()}")
        _end(found, grace_s=0)
        return found

    def restart(self, name: str, *, grace_s: float = 10) -> Process:
        """Ends it if it runs, then starts it with the arguments that it had."""
        found = self.find(name)
        if found is None:
            raise Problem(f"{name} was never started here", todo=f"started are: {self.names()}")
        _end(found, grace_s=grace_s)
        return self.start(name, found.argv, env=found.env)

    def wait_until(
        self, condition: Callable[[], bool], *, what: str, process: str, deadline_s: float
    ) -> None:
        """Raises Problem with the end of the program's log when it dies or the deadline passes."""
        ends = time.monotonic() + deadline_s
        while not condition():
            if not self.is_running(process):
                raise Problem(
                    f"{process} ended before {what}\n{self.tail(process)}\n", todo="see its log"
                )
            if time.monotonic() > ends:
                raise Problem(
                    f"waited {deadline_s:.0f} s in vain: {what}\n{self.tail(process)}\n",
                    todo=f"see {self.log(process)}",
                )
            time.sleep(POLL_S)

    def tail(self, name: str) -> str:
        path = self.log(name)
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "\n".join(line[:300] for line in lines[-LOG_TAIL_LINES:])

    def _file(self, name: str) -> Path:
        return self.state_dir / "run" / f"{name}.json"


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None once it has ended (a zombie has)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in brackets may hold spaces and brackets: fields are counted from its end.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])


def _end(process: Process, *, grace_s: float) -> None:
    """Signals the whole group: each program leads a session that holds only what it forked."""
    if grace_s > 0:
        _signal(process, signal.SIGTERM)
        _await_end(process, within_s=grace_s)
    if process.is_running:
        _signal(process, signal.SIGKILL)
        _await_end(process, within_s=10)
    if process.is_running:
        raise Problem(
            f"{process.name} (pid {process.pid}) did not end after SIGKILL",
            todo="it waits in the kernel, as on a hung disk; look at /proc/PID/stack",
        )


def _signal(process: Process, number: signal.Signals) -> None:
    if process.is_running:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _await_end(process: Process, *, within_s: float) -> None:
    ends = time.monotonic() + within_s
    while process.is_running and time.monotonic() < ends:
        time.sleep(POLL_S)
    child = _children.get(process.pid)
    if child is not None and child.poll() is not None:
        del _children[process.pid]
