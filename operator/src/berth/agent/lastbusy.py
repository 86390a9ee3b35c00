"""When had each runner last work in hand? On the disk, so that the guard knows its order alone."""

import json
import logging
from collections.abc import Collection
from pathlib import Path

from berth.agent.partial import replace_text

log = logging.getLogger(__name__)
EVERY_S = 30.0
"""Between two writes of one runner's moment: the order matters, not the second."""


class LastBusy:
    """Moments of the wall clock, by uid of the runner."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: dict[str, float] = {}
        self.moments = _read(path)

    def note(self, uid: str, now: float) -> None:
        """It has work in hand now."""
        self.moments[uid] = now
        if now - self._written.get(uid, 0.0) >= EVERY_S:
            self._written[uid] = now
            self._write()

    def keep_only(self, uids: Collection[str]) -> None:
        """The others are gone."""
        gone = self.moments.keys() - set(uids)
        for uid in gone:
            del self.moments[uid]
            self._written.pop(uid, None)

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self._path, json.dumps(self.moments))
        except OSError as err:
            log.error("%s not written: %s", self._path, err)


def _read(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_text())
        return {str(uid): float(moment) for uid, moment in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
