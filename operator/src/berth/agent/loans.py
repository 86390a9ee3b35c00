"""What may a pod mount of this node's store? One note for each runner, on the disk.

The agent writes the notes, the volume driver beside it reads them: neither asks the other, nor the
API server, so a pod gets its files while either is away.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from berth.agent.partial import replace_text
from berth.manifests.lent import SESSIONS, WEIGHTS

_NOTES = "loans"
_RUNNERS = "runners"


@dataclass(frozen=True)
class Loan:
    """The pod of one Runner may mount that Runner's files."""

    runner: str
    """Its uid."""
    namespace: str
    pod: str
    """A pod has its Runner's name."""
    sessions: str = ""
    """Its folder below the store's ``sessions``, ``MODEL-UID/KEY``; empty: none."""


class Loans:
    """The notes below one store. Reading makes no folder: the driver sees the store read-only."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._notes = root / _NOTES

    def note(self, loan: Loan) -> None:
        self._notes.mkdir(parents=True, exist_ok=True)
        replace_text(self._path(loan.runner), json.dumps(asdict(loan)))

    def drop(self, runner: str) -> None:
        self._path(runner).unlink(missing_ok=True)

    def of(self, namespace: str, pod: str) -> Loan | None:
        """What this pod may mount; None when it is no runner's."""
        return next((x for x in self._all() if (x.namespace, x.pod) == (namespace, pod)), None)

    def runners(self) -> list[str]:
        """Uids of the runners that something is lent to."""
        return sorted(loan.runner for loan in self._all())

    def sessions(self) -> set[str]:
        """Folders of sessions that are lent."""
        return {loan.sessions for loan in self._all() if loan.sessions}

    def folder(self, loan: Loan, kind: str) -> Path | None:
        """What is lent of this kind, whether it is there or not; None when nothing is."""
        if kind == WEIGHTS:
            return self._root / _RUNNERS / loan.runner
        if kind == SESSIONS and loan.sessions:
            return self._root / SESSIONS / loan.sessions
        return None

    def _all(self) -> Iterator[Loan]:
        for path in sorted(self._notes.glob("*.json")):
            try:
                yield Loan(**json.loads(path.read_text()))
            except (OSError, ValueError, TypeError):
                continue  # taken back meanwhile, or by a release that wrote other fields

    def _path(self, runner: str) -> Path:
        if not runner or "/" in runner or runner.startswith("."):
            raise ValueError(f"{runner!r} is not the uid of a runner")
        return self._notes / f"{runner}.json"
