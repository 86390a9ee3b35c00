"""A fake NVML: ``library(folder)`` compiles it, ``Nvml`` says what it shows.

It answers `pynvml` and anything else that loads ``libnvidia-ml.so.1``: load it by its full path
first (its SONAME then satisfies every later load in the process), or put its folder in
LD_LIBRARY_PATH of a process to be started.
"""

import ctypes
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
SONAME = "libnvidia-ml.so.1"
VARIABLE = "FAKE_NVML"
"""Names the file that the library reads anew at every call."""


def compile_library(folder: Path) -> Path:
    """The library, compiled into ``folder``."""
    target = folder / SONAME
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-Wl,-soname,{SONAME}"]
    subprocess.run([*command, "-o", str(target), str(SOURCE)], check=True)
    return target


def load(library: Path) -> ctypes.CDLL:
    """Have every later load of the SONAME in this process find this one."""
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@dataclass
class Device:
    """One GPU. ``errors`` gives a code that a call answers: ``memory``, ``uuid``, ``handle``, …"""

    uuid: str
    name: str = "Fake H200"
    total: int = 0
    used: int = 0
    capability: tuple[int, int] = (9, 0)
    errors: dict[str, int] = field(default_factory=dict)
    processes: dict[int, int | None] = field(default_factory=dict)
    """Bytes by process id; None: not available."""


@dataclass
class Nvml:
    """What the library shows, written to the file that it reads."""

    path: Path
    devices: list[Device] = field(default_factory=list)
    driver: str = "570.86.15"
    init_error: int = 0
    count_error: int = 0

    def write(self) -> None:
        lines = [f"driver {self.driver}", f"init {self.init_error}", f"count {self.count_error}"]
        for index, device in enumerate(self.devices):
            major, minor = device.capability
            lines.append(
                f"gpu {device.uuid} {device.total} {device.used} {major} {minor} {device.name}"
            )
            lines += [f"error {index} {call} {code}" for call, code in device.errors.items()]
            lines += [
                f"process {index} {pid} {-1 if used is None else used}"
                for pid, used in device.processes.items()
            ]
        self.path.write_text("\n".join(lines) + "\n")
