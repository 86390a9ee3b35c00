"""What keeps one file's weights in host memory? ``python3 -m berth.runner.holder FILE``.

It maps the file and locks its pages. They are charged to whoever reads them first, so what others
have left of it in the page cache is let go before: the copy then counts in this pod's memory alone,
and whoever maps the file beside it is charged nothing.
"""

import ctypes
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

READY = Path("/tmp/held")
"""Exists once every page is locked; the kubelet looks for it."""
PIECE = 64 << 20
"""Bytes locked at a time: between two pieces a signal is obeyed."""
_FAILED = ctypes.c_void_p(-1).value


class HoldError(Exception):
    """The file cannot be held; the text says what was refused, and what would help."""


class Held:
    """One file, mapped and locked until `close` or the end of the process."""

    def __init__(self, path: str, libc: ctypes.CDLL | None = None) -> None:
        self._libc = libc or ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
            ctypes.c_long,
        )
        for call in (self._libc.mlock, self._libc.munmap):
            call.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self.size = os.fstat(descriptor).st_size
            # Pages that somebody has mapped stay, charged to that one.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            self._at = self._map(descriptor, path)
        finally:
            os.close(descriptor)
        self.locked = 0

    def _map(self, descriptor: int, path: str) -> int:
        if not self.size:
            raise HoldError(f"{path} is empty")
        found = self._libc.mmap(None, self.size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if found is None or found == _FAILED:
            raise HoldError(f"mapping {path}: {os.strerror(ctypes.get_errno())}")
        return int(found)

    def lock(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Read and lock every page; False when told to stop before the end. Raises HoldError."""
        while self.locked < self.size:
            if stopped():
                return False
            piece = min(PIECE, self.size - self.locked)
            if self._libc.mlock(self._at + self.locked, piece):
                why = os.strerror(ctypes.get_errno())
                raise HoldError(
                    f"locking byte {self.locked} of {self.size}: {why}; it takes CAP_IPC_LOCK or a "
                    "memlock limit of that size, and as much free memory"
                )
            self.locked += piece
        return True

    def close(self) -> None:
        """Unlock and unmap; the pages stay as page cache until somebody needs the room."""
        self._libc.munmap(self._at, self.size)


def main(arguments: list[str]) -> int:
    """Hold the file until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        held = Held(arguments[0])
        if held.lock(stop.is_set):
            READY.touch()
            _say("info", f"{held.size} bytes of {arguments[0]} are held")
            stop.wait()
    except (HoldError, OSError) as err:
        _say("error", str(err))
        return 1
    return 0


def _say(level: str, message: str) -> None:
    print(f"{level}: holder: {message}", flush=True)  # noqa: T201 - the container's output is the log


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
