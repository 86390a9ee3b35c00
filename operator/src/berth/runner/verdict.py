"""Why did the engine end? A pure judgement from its status, its last words and the kernel's count."""

import re
import signal
from dataclasses import dataclass

from berth.runner.exits import ExitCode
from berth.runner.machine import State, Why

_BAD_FLAGS = re.compile(
    r"error: invalid argument|unrecognized arguments|error: (the following )?argument|"
    r"expected value for argument|error while handling argument",
)
_DEVICE_OOM = re.compile(
    r"out of memory|cudaMalloc failed|failed to allocate|unable to allocate|"
    r"std::bad_alloc|OutOfMemoryError|No available memory for the cache blocks",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Ending:
    """What is known when the engine has been reaped.

    ``status``: exit code, or minus the signal. ``oom_kills``: by how much the cgroup's count of
    OOM kills grew since the engine started; None where there is no such count.
    """

    state: State
    status: int
    said: str
    oom_kills: int | None


@dataclass(frozen=True)
class Verdict:
    """The runner's own exit code and one sentence with the figures."""

    code: ExitCode
    message: str


def judge_ending(ending: Ending) -> Verdict:
    """First match wins.

    1. The agent called it hung: hang.
    2. Its answer to the smoke test was wrong: the smoke test failed.
    3. The runner itself stopped it: ok, whatever its status was.
    4. The kernel killed for memory, or its last words are of memory: out of memory.
    5. It had been up: a crash.
    6. It spoke of an argument: bad flags.
    7. It ended before it was up: the load failed.
    """
    how = _how(ending.status)
    why = ending.state.why
    if why is Why.HANG:
        return Verdict(ExitCode.HANG, f"{why.value}; {how}")
    if why is Why.SMOKE:
        return Verdict(ExitCode.SMOKE_FAILED, f"{why.value}: {ending.state.fault}")
    if why is not Why.NOBODY:
        return Verdict(ExitCode.OK, f"{why.value}; {how}")
    if _is_killed_for_memory(ending):
        return Verdict(ExitCode.ENGINE_OOM, f"the kernel killed the engine for memory; {how}")
    if ending.status != 0 and _DEVICE_OOM.search(ending.said):
        return Verdict(ExitCode.ENGINE_OOM, f"the engine could not allocate memory; {how}")
    if ending.state.was_up:
        return Verdict(ExitCode.ENGINE_CRASH, f"the engine ended while it was up; {how}")
    if _BAD_FLAGS.search(ending.said):
        return Verdict(ExitCode.BAD_FLAGS, f"the engine refused its arguments; {how}")
    return Verdict(ExitCode.LOAD_FAILED, f"the engine ended before it was up; {how}")


def _is_killed_for_memory(ending: Ending) -> bool:
    # SIGKILL alone proves nothing (anybody may send it), a count alone may be of another process.
    return ending.status == -signal.SIGKILL and bool(ending.oom_kills)


def _how(status: int) -> str:
    if status < 0:
        return f"signal {-status} ({signal.Signals(-status).name})"
    return f"exit code {status}"
