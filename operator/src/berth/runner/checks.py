"""May the engine be started? The last look at files, devices and memory, and the refusal if not."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from berth.runner.config import DeviceNeed, FileCheck, RunnerConfig
from berth.runner.devices import NoDriverError, SeenDevice, seen_devices
from berth.runner.exits import ExitCode
from berth.runner.memory import available_bytes
from berth.runner.verdict import Verdict


@dataclass(frozen=True)
class Seen:
    """What the last look found. Sizes in bytes; a file that is absent is not in ``sizes``."""

    program: bool
    sizes: dict[str, int]
    devices: tuple[SeenDevice, ...]
    driver_error: str
    host: int


def look(config: RunnerConfig) -> Seen:
    """Measure everything that `refuse_start` judges."""
    devices, driver_error = _devices() if config.devices else ((), "")
    return Seen(
        program=shutil.which(config.engine[0], path=_search_path(config)) is not None,
        sizes={f.path: Path(f.path).stat().st_size for f in config.files if Path(f.path).is_file()},
        devices=devices,
        driver_error=driver_error,
        host=available_bytes(),
    )


def _search_path(config: RunnerConfig) -> str | None:
    return config.env.get("PATH", os.environ.get("PATH"))


def _devices() -> tuple[tuple[SeenDevice, ...], str]:
    try:
        return tuple(seen_devices()), ""
    except NoDriverError as err:
        return (), str(err)


def refuse_start(config: RunnerConfig, seen: Seen) -> Verdict | None:
    """Why the engine must not be started, or None. First refusal wins.

    1. Its program is there. 2. Every file is there with the size that was verified.
    3. Every planned device is seen. 4. Each has the bytes planned. 5. The host has them.
    """
    if not seen.program:
        return Verdict(ExitCode.ENGINE_MISSING, f"no program {config.engine[0]} in this image")
    rules = (
        *(_refuse_file(file, seen) for file in config.files),
        *(_refuse_device(need, seen) for need in config.devices),
        _refuse_host(config.host_need, seen.host),
    )
    return next((verdict for verdict in rules if verdict is not None), None)


def _refuse_file(file: FileCheck, seen: Seen) -> Verdict | None:
    size = seen.sizes.get(file.path)
    if size == file.size:
        return None
    found = "absent" if size is None else f"{size} bytes"
    return Verdict(ExitCode.MISSING_FILE, f"{file.path}: {found}, {file.size} bytes were verified")


def _refuse_device(need: DeviceNeed, seen: Seen) -> Verdict | None:
    device = next((d for d in seen.devices if d.uuid == need.uuid), None)
    if device is None:
        found = ", ".join(d.uuid for d in seen.devices) or seen.driver_error or "none"
        return Verdict(ExitCode.WRONG_DEVICE, f"planned on {need.uuid}; seen here: {found}")
    if device.free is not None and device.free < need.need:
        return Verdict(ExitCode.NO_MEMORY, _short(need.uuid, need.need, device.free))
    return None


def _refuse_host(need: int, have: int) -> Verdict | None:
    return Verdict(ExitCode.NO_MEMORY, _short("host", need, have)) if have < need else None


def _short(place: str, need: int, have: int) -> str:
    return f"{place}: {need} bytes needed, {have} bytes available, {need - have} short"
