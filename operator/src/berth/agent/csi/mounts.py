"""What is mounted here, and how is a folder bound to another place? mount(2) through ctypes."""

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MS_BIND = 4096
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Mounted:
    """One line of mountinfo (proc_pid_mountinfo(5)): ``root`` of file system ``device`` at ``point``."""

    device: str
    root: Path
    point: Path


class Mounts:
    """The mounts of this process's own namespace; what is done at a shared one reaches the host."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def bind(self, source: Path, target: Path) -> None:
        """Show the folder at ``target`` too. Raises OSError.

        The new mount has the flags of the one that ``source`` is seen through: from a read-only
        mount comes a read-only one, for everybody whom it reaches, at once. (To set the flag
        afterwards would not reach the host.)
        """
        args = (os.fsencode(source), os.fsencode(target), None, _MS_BIND, None)
        self._check(self._libc.mount(*args), target)

    def unbind(self, target: Path) -> None:
        """Take away what is mounted at ``target``; who has a file of it open keeps that."""
        flags = _MNT_DETACH | _UMOUNT_NOFOLLOW
        self._check(self._libc.umount2(os.fsencode(target), flags), target)

    def all(self) -> list[Mounted]:
        """Every mount, the last one mounted last."""
        return list(read_mountinfo(_MOUNTINFO.read_text()))

    def _check(self, result: int, target: Path) -> None:
        if result:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(target))


def read_mountinfo(text: str) -> Iterator[Mounted]:
    for line in text.splitlines():
        words = line.split()
        yield Mounted(words[2], _path(words[3]), _path(words[4]))


def _path(word: str) -> Path:
    """Blanks, tabs, newlines and backslashes are written as octal escapes; bytes are UTF-8's."""
    raw = word.encode().decode("unicode_escape").encode("latin-1")
    return Path(os.fsdecode(raw))
