"""What runs in the container beside the engine: the steps before it, and the questions for versions."""

import contextlib
import queue
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from berth.runner.config import RunnerConfig
from berth.runner.engine import Engine, engine_environment, reap_all
from berth.runner.exits import ExitCode
from berth.runner.logs import Line
from berth.runner.machine import Event, StopAsked
from berth.runner.verdict import Verdict

POLL_S = 0.25
VERSION_S = 60.0
"""The longest that one question for a version may take."""
VERSION_LENGTH = 256


def run_steps(
    config: RunnerConfig, events: "queue.SimpleQueue[Event]", tell: Callable[[Line], None]
) -> Verdict | None:
    """Run every step to its end, in order. None: all ended well. A stop that is asked for ends the step."""
    for number, step in enumerate(config.pre_exec, start=1):
        name = f"preExec step {number} of {len(config.pre_exec)} ({step[0]})"
        try:
            process = Engine(replace(config, engine=step))
        except OSError as err:
            return Verdict(ExitCode.ENGINE_MISSING, f"{name}: {err}")
        log = process.relay(tell)
        status, is_stopped = _wait(process, events, config.stop_timeout_s)
        process.kill()  # what it left behind must not run beside the engine
        log.join(timeout=1.0)
        if is_stopped:
            return Verdict(ExitCode.OK, f"stopped before it was up; in {name}")
        if status != 0:
            return Verdict(ExitCode.LOAD_FAILED, f"{name} ended with status {status}")
    return None


def _wait(process: Engine, events: "queue.SimpleQueue[Event]", stop_s: float) -> tuple[int, bool]:
    """Its status, and whether it was stopped because somebody asked."""
    asked_at: float | None = None
    while True:
        status = reap_all(process.pid)
        if status is not None:
            process.forget(status)
            return status, asked_at is not None
        with contextlib.suppress(queue.Empty):
            if isinstance(events.get(timeout=POLL_S), StopAsked):
                asked_at = asked_at or time.monotonic()
                process.terminate()
        if asked_at is not None and time.monotonic() - asked_at > stop_s:
            process.kill()


def ask_versions(config: RunnerConfig) -> Mapping[str, str]:
    """The last line that is not empty of each command that answers. What does not is left out."""
    found = {}
    for label, command in config.versions.items():
        text = _answer(command, config)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            found[label] = lines[-1][:VERSION_LENGTH]
    return found


def _answer(command: tuple[str, ...], config: RunnerConfig) -> str:
    try:
        done = subprocess.run(
            ("nice", "-n", "19", *command),
            env=engine_environment(config),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=VERSION_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    # A status that the reaper took first reads 0 here: the output is what counts.
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
