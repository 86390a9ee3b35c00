"""Which GPUs has this node, how much of each is used, and by whom? NVML through ``pynvml``.

Every NVML call can fail, at any time, with any of its codes; what cannot be learnt is left out or
None, and an unknown figure is never 0. See the NVML API reference (nvmlDeviceGetMemoryInfo,
nvmlDeviceGetComputeRunningProcesses).
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import pynvml

from berth.units import Bytes

log = logging.getLogger(__name__)
T = TypeVar("T")
_RETRY_S = 30.0
"""A driver may be loaded after the agent; asking again is cheap but not free."""
_NEEDS_NEW_START = (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_FAULTS = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
"""The second is what calls raise that an older driver does not have."""
_NO_FIGURES = (pynvml.NVML_ERROR_NOT_SUPPORTED,)
"""What memory info answers on boards whose GPU shares the host's memory."""


@dataclass(frozen=True)
class GpuProcess:
    """``used`` is None where the driver does not tell (some containers, some boards)."""

    pid: int
    used: Bytes | None


@dataclass(frozen=True)
class Gpu:
    """One device. ``unified``: it reports no memory of its own, the host's counts.

    ``used`` is None when it could not be read just now; ``processes`` is None when unknown.
    """

    uuid: str
    index: int
    name: str = ""
    total: Bytes = Bytes(0)
    used: Bytes | None = None
    compute_capability: str = ""
    unified: bool = False
    processes: tuple[GpuProcess, ...] | None = ()


@dataclass(frozen=True)
class GpuSample:
    """All devices at one moment. ``problem`` says what is wrong with the driver, if anything."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    problem: str = ""


class Gpus(Protocol):
    """The GPUs of one node. ``sample`` may block for as long as the driver does."""

    def sample(self) -> GpuSample: ...


@dataclass
class NvmlGpus:
    """The GPUs that NVML shows. Never raises."""

    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _started: bool = False
    _not_before: float = 0.0
    _problem: str = ""
    _known: dict[int, Gpu] = field(default_factory=dict)
    """By index, as last read in full: names and sizes outlive a failing call."""

    def sample(self) -> GpuSample:
        with self._lock:
            if not self._started and not self._start():
                return self._as_known()
            try:
                return self._read()
            except _FAULTS as err:
                self._problem = f"NVML: {err}"
                log.warning("GPUs cannot be read: %s", err)
                if getattr(err, "value", None) in _NEEDS_NEW_START:
                    self._stop()
                return self._as_known()

    def _as_known(self) -> GpuSample:
        """A driver that fails does not take the devices away: they are there, in unknown use."""
        known = (self._known[index] for index in sorted(self._known))
        return GpuSample(
            gpus=tuple(replace(gpu, used=None, processes=None) for gpu in known),
            problem=self._problem,
        )

    def _start(self) -> bool:
        if self.clock() < self._not_before:
            return False
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as err:
            self._not_before = self.clock() + _RETRY_S
            # No library is how a node without GPUs looks; everything else is a fault worth a line.
            missing = err.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
            problem = "" if missing else f"NVML: {err}"
            if problem and problem != self._problem:
                log.warning("NVML does not start: %s", err)
            self._problem = problem
            return False
        self._started = True
        return True

    def _stop(self) -> None:
        self._started = False
        self._not_before = self.clock() + _RETRY_S
        _or_none(pynvml.nvmlShutdown)

    def _read(self) -> GpuSample:
        count = int(pynvml.nvmlDeviceGetCount())
        found = tuple(gpu for index in range(count) if (gpu := self._device(index)) is not None)
        return GpuSample(gpus=found, driver=_text(_or_none(pynvml.nvmlSystemGetDriverVersion)))

    def _device(self, index: int) -> Gpu | None:
        """None for a device that cannot even say who it is (fallen off the bus, no permission)."""
        handle = _or_none(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            log.warning("GPU %d gives no handle and is left out", index)
            return None
        known = self._known.get(index)
        uuid = _text(_or_none(pynvml.nvmlDeviceGetUUID, handle))
        if not uuid:
            return None
        if known is None or known.uuid != uuid:
            known = Gpu(
                uuid,
                index,
                name=_text(_or_none(pynvml.nvmlDeviceGetName, handle)),
                compute_capability=_capability(handle),
            )
        gpu = _with_memory(known, handle)
        if gpu is None:
            return None
        self._known[index] = gpu
        return replace(gpu, processes=_processes(handle))


def _with_memory(gpu: Gpu, handle: Any) -> Gpu | None:
    """With its figures now; None while its size was never learnt, for 0 would be a lie."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as err:
        if err.value in _NO_FIGURES:
            return replace(gpu, total=Bytes(0), used=None, unified=True)
        log.warning("GPU %s does not tell its memory: %s", gpu.uuid, err)
        return replace(gpu, used=None) if gpu.total or gpu.unified else None
    return replace(
        gpu, total=Bytes(memory.total), used=Bytes(memory.total - memory.free), unified=False
    )


def _processes(handle: Any) -> tuple[GpuProcess, ...] | None:
    """Compute and graphics processes by id; None when NVML would tell neither list."""
    compute = _or_none(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    graphics = _or_none(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    if compute is None and graphics is None:
        return None
    by_pid = {entry.pid: entry.usedGpuMemory for entry in [*(graphics or []), *(compute or [])]}
    return tuple(
        GpuProcess(pid, None if used is None else Bytes(used)) for pid, used in by_pid.items()
    )


def _capability(handle: Any) -> str:
    pair = _or_none(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return f"{pair[0]}.{pair[1]}" if pair else ""


def _or_none(call: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return call(*arguments)
    except _FAULTS:
        return None


def _text(value: Any) -> str:
    """Older bindings answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
