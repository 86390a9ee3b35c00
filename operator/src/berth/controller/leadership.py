"""Who may act? Whoever holds the Lease; it is taken before anything runs and renewed apart from it."""

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from berth.api.meta import timestamp
from berth.kube.client import ApiError, ApiUnreachableError, Kube, Object
from berth.kube.refs import LEASES

log = logging.getLogger(__name__)

LEASE_NAME = "berth-controller"
Connect = Callable[[], Awaitable[Kube]]


@dataclass(frozen=True)
class LeaseTerms:
    """Times in seconds. ``deadline_s`` is when a leader that could not renew must be gone:
    earlier than ``duration_s``, after which others may take over, so that the two never overlap."""

    namespace: str
    duration_s: float

    @property
    def renew_s(self) -> float:
        return self.duration_s / 6

    @property
    def deadline_s(self) -> float:
        return self.duration_s * 0.8


def own_identity(pod: str) -> str:
    """Unique for this process; begins with the pod's name where there is one."""
    return f"{pod or 'process'}_{uuid.uuid4().hex[:12]}"


class Observed:
    """When did somebody else's Lease last change, as seen here? Others' clocks are not believed."""

    def __init__(self) -> None:
        self._version = ""
        self._at = 0.0

    def expired(self, lease: Object, now: float) -> bool:
        """True once the Lease stayed the same for as long as it says that it lasts."""
        version = lease["metadata"]["resourceVersion"]
        if version != self._version:
            self._version, self._at = version, now
        spec = lease.get("spec") or {}
        if not spec.get("holderIdentity"):
            return True
        return now - self._at >= float(spec.get("leaseDurationSeconds") or 15)


def is_own_former_life(holder: str, identity: str) -> bool:
    """The holder was a process of this very pod: its container ended before this one began."""
    pod = identity.rsplit("_", 1)[0]
    return pod != "process" and holder.rsplit("_", 1)[0] == pod


def _exit_at_once() -> None:
    # No clean-up: another leader may be acting already, and a tidy end would write over it.
    os._exit(1)


class Leadership:
    """The Lease, held by a thread with an event loop and a connection of its own.

    A slow pass or a blocked event loop in the main thread cannot delay a renewal, and a renewal
    that fails ends the process whatever the main thread is doing.
    """

    def __init__(
        self,
        connect: Connect,
        terms: LeaseTerms,
        identity: str,
        *,
        lost: Callable[[], None] = _exit_at_once,
    ) -> None:
        self._connect = connect
        self._terms = terms
        self.identity = identity
        self._lost = lost
        self._won: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._stop = threading.Event()
        self._renewed_at = 0.0
        self._thread = threading.Thread(target=self._main, name="leadership", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def acquired(self) -> int:
        """The epoch, once this process leads."""
        return await asyncio.wrap_future(self._won)

    def holds(self) -> bool:
        """True while nobody else can have taken over; asked before every write."""
        return time.monotonic() - self._renewed_at < self._terms.duration_s

    def release(self, timeout_s: float = 5.0) -> None:
        """Give the Lease up so that a successor need not wait for it to expire."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception:
            log.exception("the leadership thread failed")
            self._lost()

    async def _run(self) -> None:
        kube = await self._connect()
        try:
            lease = await self._acquire(kube)
            if lease is None:
                return
            epoch = int(lease["spec"]["leaseTransitions"])
            log.info("leader with epoch %d as %s", epoch, self.identity)
            self._won.set_result(epoch)
            await self._renew(kube)
            if self._stop.is_set():
                await self._give_up(kube)
        finally:
            await kube.close()

    async def _acquire(self, kube: Kube) -> Object | None:
        observed = Observed()
        while not self._stop.is_set():
            asked_at = time.monotonic()
            try:
                lease = await self._try_to_take(kube, observed)
            except (ApiError, ApiUnreachableError) as err:
                log.warning("cannot take the lease %s yet: %s", LEASE_NAME, err)
                lease = None
            if lease is not None:
                self._renewed_at = asked_at
                return lease
            await self._pause(min(1.0, self._terms.renew_s))
        return None

    async def _try_to_take(self, kube: Kube, observed: Observed) -> Object | None:
        """The Lease as taken, or None while somebody else holds it or was quicker."""
        try:
            lease = await kube.get(LEASES, LEASE_NAME, self._terms.namespace)
        except ApiError as err:
            if not err.not_found:
                raise
            body = {"metadata": {"name": LEASE_NAME}, "spec": self._spec(transitions=1)}
            return await _unless_conflict(kube.create(LEASES, body, self._terms.namespace))
        holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        free = observed.expired(lease, time.monotonic())
        if not free and not is_own_former_life(holder, self.identity):
            return None
        transitions = int((lease.get("spec") or {}).get("leaseTransitions") or 0) + 1
        patch = {
            "metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]},
            "spec": self._spec(transitions=transitions),
        }
        return await _unless_conflict(
            kube.patch_merge(LEASES, LEASE_NAME, patch, namespace=self._terms.namespace)
        )

    async def _renew(self, kube: Kube) -> None:
        while not self._stop.is_set():
            await self._pause(self._terms.renew_s)
            if self._stop.is_set():
                return
            if not await self._renew_by_deadline(kube):
                log.error("lost the lease %s: not renewed in time", LEASE_NAME)
                self._lost()
                return

    async def _renew_by_deadline(self, kube: Kube) -> bool:
        """Try until the deadline; False when it passed or somebody else holds the Lease."""
        while not self._stop.is_set():
            left = self._renewed_at + self._terms.deadline_s - time.monotonic()
            if left <= 0:
                return False
            asked_at = time.monotonic()
            try:
                # Half of what is left: a dead connection leaves time for one more try on a new one.
                async with asyncio.timeout(max(left / 2, 0.5)):
                    if not await self._renew_once(kube):
                        return False
            except (ApiError, ApiUnreachableError, TimeoutError) as err:
                log.warning("lease not renewed yet: %s", err or type(err).__name__)
                await asyncio.sleep(min(0.5, max(left, 0)))
                continue
            self._renewed_at = asked_at
            return True
        return True

    async def _renew_once(self, kube: Kube) -> bool:
        lease = await kube.get(LEASES, LEASE_NAME, self._terms.namespace)
        if (lease.get("spec") or {}).get("holderIdentity") != self.identity:
            return False
        patch = {
            "metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]},
            "spec": {"renewTime": timestamp(time.time())},
        }
        await kube.patch_merge(LEASES, LEASE_NAME, patch, namespace=self._terms.namespace)
        return True

    async def _give_up(self, kube: Kube) -> None:
        try:
            lease = await kube.get(LEASES, LEASE_NAME, self._terms.namespace)
            if (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                patch = {
                    "metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]},
                    "spec": {"holderIdentity": ""},
                }
                await kube.patch_merge(LEASES, LEASE_NAME, patch, namespace=self._terms.namespace)
        except (ApiError, ApiUnreachableError) as err:
            log.warning("the lease expires by itself, giving it up failed: %s", err)

    async def _pause(self, seconds: float) -> None:
        await asyncio.to_thread(self._stop.wait, seconds)

    def _spec(self, *, transitions: int) -> dict[str, Any]:
        now = timestamp(time.time())
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._terms.duration_s)),
            "leaseTransitions": transitions,
            "renewTime": now,
            "acquireTime": now,
        }


async def _unless_conflict(write: Awaitable[Object]) -> Object | None:
    try:
        return await write
    except ApiError as err:
        if err.conflict:
            return None
        raise
