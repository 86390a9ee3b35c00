"""How is a snapshot kept for somebody to replay? As JSON, whenever a plan met a bug."""

import logging
import tempfile
from pathlib import Path

from berth.planner.actions import Plan
from berth.planner.snapshot import state_to_json
from berth.planner.state import State
from berth.reasons import Reason

log = logging.getLogger(__name__)


class BugKeeper:
    """Writes the snapshot of a plan that met a bug, once for each Model and message."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._told: set[tuple[str, str]] = set()

    def look(self, state: State, plan: Plan) -> Path | None:
        """The file that was written; None when there was no bug that is new."""
        bugs = [
            (verdict.model, verdict.message)
            for verdict in plan.verdicts
            if verdict.reason is Reason.INTERNAL_ERROR
        ]
        new = [bug for bug in bugs if bug not in self._told]
        if not new:
            return None
        self._told.update(new)
        path = self._folder / f"berth-state-{int(state.now)}.json"
        for _, message in new:
            log.error("a bug in the planner: %s; the snapshot is in %s", message, path)
        try:
            path.write_text(state_to_json(state), encoding="utf-8")
        except OSError as err:
            log.warning("the snapshot could not be written: %s", err)
            return None
        return path
