"""Who runs the engine from its start to its end? One thread owns the state; events come in.

Threads only observe (log, probe, control port) and put events into one queue; the main thread
alone decides (`berth.runner.machine`) and acts.
"""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType

from berth.runner.checks import look, refuse_start
from berth.runner.config import RunnerConfig
from berth.runner.control import ControlPort
from berth.runner.engine import Engine, drop_page_cache, reap_all
from berth.runner.exits import ExitCode
from berth.runner.logs import Line, Tail
from berth.runner.machine import (
    Effect,
    EngineEnded,
    EngineHealthy,
    Event,
    HangSeen,
    Limits,
    Phase,
    SessionsSaved,
    SmokeEnded,
    State,
    StopAsked,
    Tick,
    WorkSeen,
    advance,
)
from berth.runner.memory import oom_kills
from berth.runner.probe import Probe
from berth.runner.report import render_report, write_report
from berth.runner.sessions import Sessions
from berth.runner.smoke import SmokeTest, smoke_fault
from berth.runner.steps import ask_versions, run_steps
from berth.runner.verdict import Ending, Verdict, judge_ending

LOOK_S = 0.25
"""Between two looks at the engine while it starts or drains."""


class Supervisor:
    """Runs one engine once; `run` returns the exit code of the whole container."""

    def __init__(self, config: RunnerConfig) -> None:
        self._config = config
        self._limits = limits_of(config)
        self._sessions = sessions_of(config)
        self._state = State(is_to_be_tested=config.smoke is not None)
        # SimpleQueue.put is re-entrant: a signal handler may interrupt another put.
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._tail = Tail()
        self._versions: Mapping[str, str] = {}
        self._since = time.monotonic()

    def run(self) -> ExitCode:
        """Check, start, supervise, report."""
        self._take_signals()
        config = self._config
        refused = refuse_start(config, look(config))
        if refused is not None:
            return self._finish(refused, status=None)
        try:
            control = ControlPort(config.control_host, config.control_port, self._snapshot)
        except OSError as err:
            message = f"control port {config.control_port}: {err.strerror}"
            return self._finish(Verdict(ExitCode.BAD_CONFIG, message), status=None)
        kills_before = oom_kills()
        if self._sessions is not None:
            os.umask(0o077)  # what a conversation was about is for this user alone to read
        stopped = run_steps(config, self._events, self._tell)
        if stopped is not None:
            return self._finish(stopped, status=None)
        try:
            engine = Engine(config)
        except OSError as err:
            return self._finish(Verdict(ExitCode.ENGINE_MISSING, str(err)), status=None)
        status = self._supervise(engine, control)
        kills = oom_kills()
        grown = None if kills is None or kills_before is None else kills - kills_before
        said = "\n".join(self._tail.lines())
        return self._finish(judge_ending(Ending(self._state, status, said, grown)), status=status)

    def _supervise(self, engine: Engine, control: ControlPort) -> int:
        log = engine.relay(self._tell)
        control.start()
        threading.Thread(target=self._watch, name="probe", daemon=True).start()
        status = self._loop(engine)
        engine.kill()
        # What the engine's children still hold open must not keep the container from ending.
        log.join(timeout=1.0)
        reap_all(engine.pid)
        control.stop()
        return status

    def _loop(self, engine: Engine) -> int:
        while True:
            status = reap_all(engine.pid)
            if status is not None:
                engine.forget(status)
                self._take(EngineEnded(time.monotonic(), status), engine)
                return status
            try:
                event = self._events.get(timeout=LOOK_S)
            except queue.Empty:
                event = Tick(time.monotonic())
            self._take(event, engine)

    def _take(self, event: Event, engine: Engine) -> None:
        before = self._state.phase
        self._state, effects = advance(self._state, event, self._limits)
        if self._state.phase is not before:
            if self._state.phase is Phase.UP and self._config.versions:
                threading.Thread(target=self._ask_versions, name="versions", daemon=True).start()
            self._say("info", f"{before.value} -> {self._state.phase.value}")
        for effect in effects:
            self._carry_out(effect, engine)

    def _carry_out(self, effect: Effect, engine: Engine) -> None:
        if effect is Effect.DROP_CACHE:
            self._tail.is_private = True
            for path in drop_page_cache(self._config.drop_cache):
                self._say("warning", f"the page cache of {path} was not dropped")
        elif effect is Effect.TEST and self._config.smoke is not None:
            test = threading.Thread(
                target=self._test, args=(self._config.smoke,), name="smoke", daemon=True
            )
            test.start()
        elif effect is Effect.SAVE:
            threading.Thread(target=self._save, name="sessions", daemon=True).start()
        elif effect is Effect.TERMINATE:
            self._say("info", f"SIGTERM to the engine: {self._state.why.value}")
            engine.terminate()
        else:
            self._say("warning", "SIGKILL to the engine")
            engine.kill()

    def _test(self, test: SmokeTest) -> None:
        fault = smoke_fault(test, self._config.host, self._config.port)
        if not fault:
            self._restore()
        self._events.put(SmokeEnded(time.monotonic(), fault))

    def _ask_versions(self) -> None:
        """Beside an engine that is up: nothing waits for it."""
        self._versions = ask_versions(self._config)
        said = ", ".join(f"{name} {value}" for name, value in self._versions.items())
        self._say("info", f"versions: {said or 'none could be asked'}")

    def _watch(self) -> None:
        config = self._config
        probe = Probe(config)
        pause = threading.Event()
        while self._state.phase is not Phase.ENDED:
            phase = self._state.phase
            if phase is Phase.STARTING and probe.is_healthy():
                if config.smoke is None:  # else after it, for it takes a slot
                    self._restore()
                self._events.put(EngineHealthy(time.monotonic()))
            elif phase is Phase.DRAINING:
                self._events.put(WorkSeen(time.monotonic(), probe.is_busy()))
            pause.wait(LOOK_S)

    def _restore(self) -> None:
        """Before the engine counts as up: the first request must find its conversation."""
        if self._sessions is not None:
            self._say("info", f"restored: {self._sessions.restore()}")

    def _save(self) -> None:
        if self._sessions is not None:
            self._say("info", f"saved: {self._sessions.save()}")
        self._events.put(SessionsSaved(time.monotonic()))

    def _take_signals(self) -> None:
        def on_stop(number: int, frame: FrameType | None) -> None:
            self._events.put(StopAsked(time.monotonic()))

        def on_hang(number: int, frame: FrameType | None) -> None:
            self._events.put(HangSeen(time.monotonic()))

        def on_child(number: int, frame: FrameType | None) -> None:
            self._events.put(Tick(time.monotonic()))

        signal.signal(signal.SIGTERM, on_stop)
        signal.signal(signal.SIGINT, on_stop)
        signal.signal(signal.SIGUSR1, on_hang)
        signal.signal(signal.SIGCHLD, on_child)

    def _snapshot(self) -> Mapping[str, object]:
        state, now = self._state, time.monotonic()
        return {
            "status": state.phase.value,
            "busy": state.busy,
            "seconds": round(now - self._since, 3),
            "versions": dict(self._versions),
            "drainingSeconds": None
            if state.drain_since is None
            else round(now - state.drain_since, 3),
        }

    def _tell(self, line: Line) -> None:
        self._tail.add(line)
        if line.is_at_least(self._config.log_level):
            print(line, flush=True)  # noqa: T201 - the container's output is the log

    def _say(self, level: str, message: str) -> None:
        print(f"{level}: runner: {message}", flush=True)  # noqa: T201 - as above

    def _finish(self, verdict: Verdict, *, status: int | None) -> ExitCode:
        level = "info" if verdict.code is ExitCode.OK else "error"
        self._say(level, f"{verdict.code.reason}: {verdict.message}")
        text = render_report(verdict, status, self._tail.lines())
        if not write_report(self._config.termination_log, text):
            self._say("warning", f"{self._config.termination_log} cannot be written")
        sys.stdout.flush()
        return verdict.code


def limits_of(config: RunnerConfig) -> Limits:
    """The spans that its configuration leaves to each part of the end."""
    save_s = config.session_time_s if config.sessions is not None else 0.0
    return Limits(config.quiet_s, config.drain_limit_s, config.stop_timeout_s, save_s)


def sessions_of(config: RunnerConfig) -> Sessions | None:
    """None where none are kept."""
    if config.sessions is None:
        return None
    store = config.sessions
    return Sessions(
        store.folder, config.host, config.port, limit=store.limit, time_s=config.session_time_s
    )
