"""Which changes of ``status.agent`` are written, and how do they reach the API server?

What is written is always the whole subtree, by server-side apply. While the server is away only
the newest value is kept: nobody needs to learn what was true in between.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from berth.agent.quanta import FREE_EVERY_S, PROGRESS_EVERY_S, has_moved, has_risen, has_shifted
from berth.api.runner import Admission, AgentStatus, FetchStatus, Health, MemoryUse
from berth.kube.client import ApiError, ApiUnreachableError
from berth.kube.refs import Ref

log = logging.getLogger(__name__)
MANAGER = "berth-agent"
Object = dict[str, Any]


def is_worth_writing(before: AgentStatus | None, now: AgentStatus, *, passed_s: float) -> bool:
    """Whether ``now`` differs enough from what was written ``passed_s`` seconds ago.

    1. A word that somebody acts on (states, reasons, quiet, the pass, busy or not): at once.
    2. Progress and counters: after 5 s. 3. Free memory: on a quantum, after 10 s.
    4. Peaks: on a quantum, after 5 s. 5. What is held now: on a quantum, after 10 s.
    """
    if before is None:
        return now != AgentStatus()
    if before == now:
        return False
    if _words(before) != _words(now):
        return True
    if passed_s >= PROGRESS_EVERY_S and _progress(before) != _progress(now):
        return True
    if passed_s >= FREE_EVERY_S and has_moved(_have(before.admission), _have(now.admission)):
        return True
    if passed_s >= PROGRESS_EVERY_S and _has_grown(before.memory, now.memory):
        return True
    return passed_s >= FREE_EVERY_S and _has_shifted(before.memory, now.memory)


def memory_has_moved(before: AgentStatus | None, now: AgentStatus) -> bool:
    """What the runner holds differs by a quantum from what was written."""
    return _has_shifted(before.memory if before else None, now.memory)


def _words(status: AgentStatus) -> tuple[object, ...]:
    fetch = status.fetch or FetchStatus()
    health = status.health or Health()
    admission = status.admission
    return (
        status.epoch,
        (fetch.state, fetch.reason, fetch.message, fetch.total),
        admission and (admission.state, admission.pass_id, admission.reason, admission.need),
        admission and admission.state == "Admitted" and admission.expires_at,
        (health.state, health.since, health.busy > 0),
        status.quiet and (status.quiet.since, status.quiet.drain_seen),
        status.versions,
    )


def _progress(status: AgentStatus) -> tuple[object, ...]:
    health = status.health or Health()
    return (
        status.fetch and status.fetch.done,
        (health.busy, health.served, health.prompt_tokens, health.tokens, health.failed_checks),
    )


def _have(admission: Admission | None) -> int | None:
    return None if admission is None else admission.have


def _figures(memory: MemoryUse | None, kind: str) -> dict[str, int | None]:
    memory = memory or MemoryUse()
    host = memory.host_peak if kind == "peak" else memory.host
    return {"": host} | {use.device: getattr(use, kind) for use in memory.devices}


def _has_grown(before: MemoryUse | None, now: MemoryUse | None) -> bool:
    old = _figures(before, "peak")
    return any(has_risen(old.get(key), peak) for key, peak in _figures(now, "peak").items())


def _has_shifted(before: MemoryUse | None, now: MemoryUse | None) -> bool:
    old, new = _figures(before, "used"), _figures(now, "used")
    return any(has_shifted(old.get(key), new.get(key)) for key in old.keys() | new.keys())


class Applies(Protocol):
    """The part of ``kube.client.Kube`` that writing needs."""

    async def apply(
        self,
        ref: Ref,
        name: str,
        body: Object,
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> Object: ...


@dataclass(frozen=True)
class Subject:
    """The object whose status is written.

    The API server ignores a uid on a status: that a value is not written to a later object of the
    same name is up to `StatusWriter.forget`, called when the watch shows that this one is gone.
    """

    ref: Ref
    name: str
    namespace: str = ""
    uid: str = ""


class StatusWriter:
    """Writes statuses, one at a time for each object, the newest value only, until they are written."""

    def __init__(self, kube: Applies, gone: Callable[[Subject], None] = lambda _: None) -> None:
        self._kube = kube
        self._gone = gone
        self._wanted: dict[Subject, Object] = {}
        self._tasks: dict[Subject, asyncio.Task[None]] = {}
        self.failures = 0

    def put(self, subject: Subject, status: Object) -> None:
        """Have this written as soon as may be; it replaces what was not written yet."""
        self._wanted[subject] = status
        if subject not in self._tasks:
            self._tasks[subject] = asyncio.create_task(self._write(subject))

    def forget(self, subject: Subject) -> None:
        """The object is gone: nothing of it is left to write."""
        self._wanted.pop(subject, None)

    async def flush(self) -> None:
        """Wait until everything is written."""
        while self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, subject: Subject) -> None:
        delay = 0.2
        try:
            while (status := self._wanted.get(subject)) is not None:
                if await self._try(subject, status):
                    # A newer value that came meanwhile is another object and stays wanted.
                    if self._wanted.get(subject) is status:
                        del self._wanted[subject]
                    delay = 0.2
                    continue
                # Jitter keeps a fleet of agents from asking a restarted API server all at once.
                await asyncio.sleep(delay * (0.5 + random.random()))
                delay = min(delay * 2, 5.0)
        finally:
            del self._tasks[subject]

    async def _try(self, subject: Subject, status: Object) -> bool:
        """True when there is nothing left to do about this value."""
        try:
            await self._kube.apply(
                subject.ref,
                subject.name,
                {"status": status},
                manager=MANAGER,
                namespace=subject.namespace,
                subresource="status",
            )
        except ApiUnreachableError as err:
            self.failures += 1
            log.warning("status of %s %s not written yet: %s", subject.ref.kind, subject.name, err)
            return False
        except ApiError as err:
            return self._refused(subject, err)
        return True

    def _refused(self, subject: Subject, err: ApiError) -> bool:
        if err.not_found:
            self._gone(subject)
            return True
        self.failures += 1
        log.error("status of %s %s refused: %s", subject.ref.kind, subject.name, err)
        # A server that is overloaded or starting will take it; one that says it is wrong will not.
        return err.status in (400, 422)
