"""With which code does the runner exit, and what does the code mean to its reader?

The codes stay clear of what others use: 1 and 2 (Python, argparse), 126 to 165 (shells, signals)
and 137 (the kernel's OOM killer took PID 1 itself, which Kubernetes reports as OOMKilled).
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The runner's exit codes; ``reason`` is the word that conditions and events show."""

    OK = 0
    """It was asked to stop and did: drained, or stopped before it was up."""
    NO_MEMORY = 10
    """The last look before the start found too little memory: plan again, not a crash."""
    WRONG_DEVICE = 11
    """The devices seen are not the devices planned."""
    MISSING_FILE = 12
    """A weight file is absent, or its size is not the size that was verified."""
    BAD_FLAGS = 13
    """The engine refused its arguments: it will refuse them again."""
    ENGINE_CRASH = 14
    """The engine ended by itself after it had been up."""
    ENGINE_OOM = 15
    """The engine ran out of memory on the host or on a device: the need was too small."""
    HANG = 16
    """The agent saw work without progress and had the engine killed (SIGUSR1)."""
    BAD_CONFIG = 17
    """``BERTH_RUNNER`` is absent or unreadable."""
    ENGINE_MISSING = 18
    """The engine's program is not in the image, or is not executable."""
    LOAD_FAILED = 19
    """The engine ended before it was up, for no reason known above."""

    SMOKE_FAILED = 20
    """The engine was healthy, but its answer to the smoke test was not what it must be."""

    @property
    def reason(self) -> str:
        """The code as a Kubernetes reason: ``ENGINE_OOM`` reads ``EngineOOM``."""
        return "".join(_word(part) for part in self.name.split("_"))


def _word(part: str) -> str:
    return part if part in {"OK", "OOM"} else part.capitalize()


RETRIED_IN_PLACE = frozenset({ExitCode.ENGINE_CRASH, ExitCode.HANG, ExitCode.LOAD_FAILED})
"""Exits after which the same engine on the same place may well work, with backoff."""

PLANNED_AGAIN = frozenset({ExitCode.NO_MEMORY, ExitCode.WRONG_DEVICE, ExitCode.ENGINE_OOM})
"""Exits that say something about the place or the need, not about the engine."""
