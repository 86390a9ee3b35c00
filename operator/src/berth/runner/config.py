"""What was the runner told to run? One JSON object, in ``BERTH_RUNNER`` or in a file that it names.

Keys are camelCase as everywhere on the wire. Times are seconds, sizes are bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from berth.runner.smoke import SmokeTest

VARIABLE = "BERTH_RUNNER"
"""The environment variable: JSON itself, or ``@/path/to/file`` holding it."""
LEVEL_VARIABLE = "BERTH_LOG_LEVEL"


class BadConfigError(Exception):
    """The configuration is absent or cannot be understood; the text says which key and why."""


@dataclass(frozen=True)
class FileCheck:
    """A file that must be there before the engine starts, with the size that was verified."""

    path: str
    size: int


@dataclass(frozen=True)
class DeviceNeed:
    """A device that was planned: its NVML UUID and the bytes that must be free on it."""

    uuid: str
    need: int


@dataclass(frozen=True)
class SessionStore:
    """Where the engine saves its sessions, and the most that they may take in bytes."""

    folder: str
    limit: int


@dataclass(frozen=True)
class RunnerConfig:
    """Everything the runner knows. ``engine`` is an argument list; no shell ever sees it."""

    engine: tuple[str, ...]
    port: int
    control_port: int = 8090
    host: str = "127.0.0.1"
    """Where the engine is probed; the engine itself listens where its arguments say."""
    control_host: str = ""
    """Where the control port listens: every address, so that the kubelet reaches it."""
    env: Mapping[str, str] = field(default_factory=dict)
    busy_probe: str = "llamacpp"
    health_path: str = "/health"
    host_need: int = 0
    """Bytes of host memory that must be available just before the engine starts."""
    devices: tuple[DeviceNeed, ...] = ()
    files: tuple[FileCheck, ...] = ()
    drop_cache: tuple[str, ...] = ()
    """Files whose page cache is dropped once the engine is up: they are not read again."""
    pre_exec: tuple[tuple[str, ...], ...] = ()
    """Argument lists that run before the engine, one after the other."""
    busy_gauges: tuple[str, ...] = ()
    """Names on ``metrics_path`` that add up to the work in hand; empty: those of ``busy_probe``."""
    metrics_path: str = "/metrics"
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Commands by label, run once the engine is up; the last line that is not empty counts."""
    smoke: SmokeTest | None = None
    """A request that must be answered well before the runner counts as up."""
    sessions: SessionStore | None = None
    """None: what the engine remembers goes with it."""
    quiet_s: float = 2.0
    """How long the engine must have been without work, without a break, to count as quiet."""
    drain_timeout_s: float = 300.0
    session_time_s: float = 60.0
    stop_timeout_s: float = 20.0
    """From SIGTERM to SIGKILL of the engine."""
    termination_grace_s: float = 390.0
    """The pod's grace: the kubelet kills everything when it has passed."""
    termination_log: str = "/dev/termination-log"
    log_level: str = "info"
    """Lines of the engine below this level are not relayed. From BERTH_LOG_LEVEL, not the JSON."""

    @property
    def drain_limit_s(self) -> float:
        """The longest drain that still leaves time to save sessions and to stop the engine."""
        rest = self.termination_grace_s - self.session_time_s - self.stop_timeout_s
        return max(0.0, min(self.drain_timeout_s, rest))


_PLAIN = {
    "port": ("port", int),
    "controlPort": ("control_port", int),
    "host": ("host", str),
    "controlHost": ("control_host", str),
    "busyProbe": ("busy_probe", str),
    "healthPath": ("health_path", str),
    "hostNeed": ("host_need", int),
    "quiet": ("quiet_s", float),
    "drainTimeout": ("drain_timeout_s", float),
    "sessionTime": ("session_time_s", float),
    "stopTimeout": ("stop_timeout_s", float),
    "terminationGrace": ("termination_grace_s", float),
    "terminationLog": ("termination_log", str),
}
"""Wire key → (field, type) of the settings that are one number or one string."""

_KEYS = frozenset(
    {*_PLAIN, "engine", "env", "devices", "files", "dropCache", "smoke", "sessions"}
    | {"preExec", "optional"}
)


def load_config(environment: Mapping[str, str]) -> RunnerConfig:
    """The configuration named by ``BERTH_RUNNER``. Raises BadConfigError."""
    text = environment.get(VARIABLE, "")
    if not text:
        raise BadConfigError(f"{VARIABLE} is not set")
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as err:
            raise BadConfigError(f"{VARIABLE} names {text[1:]}: {err.strerror}") from err
    return replace(parse_config(text), log_level=environment.get(LEVEL_VARIABLE) or "info")


def parse_config(text: str) -> RunnerConfig:
    """The configuration of one JSON text. Raises BadConfigError naming the key at fault."""
    try:
        data = json.loads(text)
    except ValueError as err:
        raise BadConfigError(f"{VARIABLE} is not JSON: {err}") from err
    if not isinstance(data, dict):
        raise BadConfigError(f"{VARIABLE} is not a JSON object")
    unknown = sorted(set(data) - _KEYS)
    if unknown:
        # A misspelt key must not silently mean its default: these settings guard memory.
        raise BadConfigError(f"{VARIABLE} has unknown keys: {', '.join(unknown)}")
    try:
        return _typed(data)
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise BadConfigError(f"{VARIABLE}: {type(err).__name__}: {err}") from err


def _typed(data: dict[str, Any]) -> RunnerConfig:
    plain = {name: kind(data[key]) for key, (name, kind) in _PLAIN.items() if key in data}
    engine = tuple(str(word) for word in data["engine"])
    if not engine or isinstance(data["engine"], str):
        raise ValueError("engine must be a list of arguments, program first")
    return RunnerConfig(
        engine=engine,
        env={str(key): str(value) for key, value in data.get("env", {}).items()},
        devices=tuple(DeviceNeed(str(d["uuid"]), int(d["need"])) for d in data.get("devices", ())),
        files=tuple(FileCheck(str(f["path"]), int(f["size"])) for f in data.get("files", ())),
        drop_cache=tuple(str(path) for path in data.get("dropCache", ())),
        smoke=_smoke(data["smoke"]) if data.get("smoke") else None,
        sessions=_sessions(data.get("sessions")),
        pre_exec=tuple(_words(step) for step in data.get("preExec", ())),
        **_optional(data.get("optional") or {}),
        **plain,
    )


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not value:
        raise ValueError("a command must be a list of arguments, program first")
    return tuple(str(word) for word in value)


def _optional(data: dict[str, Any]) -> dict[str, Any]:
    """What this program knows of the optional part; a newer controller may say more."""
    metrics = data.get("metrics") or {}
    return {
        "versions": {str(k): _words(v) for k, v in (data.get("versions") or {}).items()},
        "busy_gauges": tuple(str(name) for name in metrics.get("busy") or ()),
        "metrics_path": str(metrics.get("path") or RunnerConfig.metrics_path),
    }


def _smoke(data: dict[str, Any]) -> SmokeTest:
    return SmokeTest(
        path=str(data["path"]),
        body=str(data["body"]),
        expect=str(data.get("expect") or ""),
        timeout_s=float(data.get("timeout", SmokeTest.timeout_s)),
        is_asked=bool(data.get("asked", True)),
    )


def _sessions(data: dict[str, Any] | None) -> SessionStore | None:
    return SessionStore(str(data["folder"]), int(data["limit"])) if data else None


def render_config(config: RunnerConfig) -> str:
    """The JSON that `parse_config` reads back to an equal value; for whoever writes the pod."""
    plain = {key: getattr(config, name) for key, (name, _) in _PLAIN.items()}
    return json.dumps(
        {
            "engine": list(config.engine),
            "env": dict(config.env),
            "devices": [{"uuid": d.uuid, "need": d.need} for d in config.devices],
            "files": [{"path": f.path, "size": f.size} for f in config.files],
            "dropCache": list(config.drop_cache),
            **({} if config.smoke is None else {"smoke": _smoke_wire(config.smoke)}),
            "sessions": config.sessions and asdict(config.sessions),
            "preExec": [list(step) for step in config.pre_exec],
            "optional": {
                "versions": {label: list(words) for label, words in config.versions.items()},
                "metrics": {"path": config.metrics_path, "busy": list(config.busy_gauges)},
            },
            **plain,
        },
        separators=(",", ":"),
    )


def _smoke_wire(smoke: SmokeTest) -> dict[str, Any]:
    return {
        "path": smoke.path,
        "body": smoke.body,
        "expect": smoke.expect,
        "timeout": smoke.timeout_s,
        "asked": smoke.is_asked,
    }
