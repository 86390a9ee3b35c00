"""Which GPUs does this container see, and how much of each is free? NVML through ctypes.

Only what the last look needs: see the NVML API reference (nvmlDeviceGetUUID,
nvmlDeviceGetMemoryInfo). The agent's inventory uses the full binding; this file may not.
"""

import ctypes
from dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"


class NoDriverError(Exception):
    """The driver's library is absent or refuses to start; the text says which."""


@dataclass(frozen=True)
class SeenDevice:
    """A GPU by UUID. ``free`` is None where the board reports no memory of its own (unified)."""

    uuid: str
    free: int | None


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def seen_devices(library: str = LIBRARY) -> list[SeenDevice]:
    """Every GPU that NVML shows here. Raises NoDriverError."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError as err:
        raise NoDriverError(f"{library} cannot be loaded: {err}") from err
    if code := nvml.nvmlInit_v2():
        raise NoDriverError(f"nvmlInit_v2 failed with code {code}")
    try:
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return [_device(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()


def _device(nvml: ctypes.CDLL, index: int) -> SeenDevice:
    handle, uuid, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), _Memory()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return SeenDevice(uuid="", free=None)
    nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(96))
    unknown = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return SeenDevice(uuid=uuid.value.decode(), free=None if unknown else memory.free)
