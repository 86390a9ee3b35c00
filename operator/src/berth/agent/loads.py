"""Which loads may start on this node? Decided one after the other, on what is live right now."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from berth.agent.admission import Admit, Ground, Refusal, decide
from berth.agent.ledger import entry_of
from berth.agent.metrics import Metrics
from berth.agent.runners import RunnerWork
from berth.agent.site import Site
from berth.api.meta import timestamp
from berth.api.runner import Admission

log = logging.getLogger(__name__)


class Loads:
    """Admission on one node. ``survey`` looks anew, and gives the ground for decisions on that."""

    def __init__(
        self,
        site: Site,
        works: Callable[[], Iterable[RunnerWork]],
        survey: Callable[[], Awaitable[Callable[[], Ground]]],
        metrics: Metrics,
    ) -> None:
        self._site = site
        self._works = works
        self._survey = survey
        self._metrics = metrics

    async def run(self) -> None:
        """Decide when something changed, and every second while somebody waits."""
        while True:
            self._site.admit.clear()
            await self.decide_all()
            pause = self._site.timing.admission_s if self._waiting() else None
            try:
                async with asyncio.timeout(pause):
                    await self._site.admit.wait()
            except TimeoutError:
                continue

    async def decide_all(self) -> None:
        """One decision for each that waits, eldest first; each counts those before it."""
        if not any(self._is_due(work) for work in self._waiting()):
            return
        ground = await self._survey()
        # Asked again: one may have been called off, or got its pod, while memory was looked at.
        for work in self._waiting():
            if self._is_due(work):
                self._decide(work, ground())

    def _is_due(self, work: RunnerWork) -> bool:
        until = work.admitted_until
        return until is None or until <= self._site.wall()

    def _waiting(self) -> list[RunnerWork]:
        """A runner that is admitted waits too: for its pod, or to be admitted anew."""
        waiting = [work for work in self._works() if work.wants_admission]
        return sorted(waiting, key=lambda w: (w.runner.metadata.creation_timestamp, w.uid))

    def _decide(self, work: RunnerWork, ground: Ground) -> None:
        decision = decide(entry_of(work), ground)
        admission = self._admission(work, decision)
        before = work.admission
        if isinstance(decision, Admit):
            work.available_before = ground.node.available
        work.decide(admission)
        if before is None or _words(before) != _words(admission):
            self._tell(work, admission)

    def _admission(self, work: RunnerWork, decision: Admit | Refusal) -> Admission:
        now = self._site.wall()
        is_admitted = isinstance(decision, Admit)
        lasts = self._site.timing.admission_ttl_s if is_admitted else 0.0
        return Admission(
            state="Admitted" if is_admitted else "Refused",
            at=timestamp(now),
            expires_at=timestamp(now + lasts),
            pass_id=work.runner.spec.pass_id,
            need=decision.need,
            have=decision.have,
            reason=None if isinstance(decision, Admit) else decision.reason,
            message=None if isinstance(decision, Admit) else decision.message[:1024],
        )

    def _tell(self, work: RunnerWork, admission: Admission) -> None:
        reason = admission.reason or ""
        self._metrics.admissions.labels(decision=admission.state, reason=reason).inc()
        self._site.journal.note(
            "admission",
            runner=work.runner.key,
            uid=work.uid,
            state=admission.state,
            reason=reason,
            need=admission.need,
            have=admission.have,
            message=admission.message or "",
        )
        log.info(
            "runner %s: load %s: %s",
            work.runner.key,
            admission.state.lower(),
            admission.message
            or f"needs {admission.need} bytes, {admission.have} are free where it is tightest",
        )


def _words(admission: Admission) -> tuple[str, str, str | None]:
    return (admission.state, admission.pass_id, admission.reason)
