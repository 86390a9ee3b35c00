"""How do the API server's events reach the store? kopf, in its thinnest form.

One ``on.event`` handler a kind, which only passes the raw object on. Such handlers make kopf write
nothing: no finalizer, no annotation, no status, no Event.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import kopf

from berth.controller.leadership import LEASE_NAME
from berth.controller.store import Store, Table
from berth.controller.unkept import NoBase, NoProgress
from berth.kube.client import ApiError, ApiUnreachableError, Kube, Object
from berth.kube.refs import LEASES, Ref

log = logging.getLogger(__name__)

_SERVER_TIMEOUT_S = 240
_CLIENT_TIMEOUT_S = 300
_ALIVE_S = 25.0
"""The Lease is renewed every 2.5 s: ten missed echoes mean that the watch is not alive."""
_RESYNC_S = 300.0
_LOOK_S = 5.0


class WatchHealth:
    """Since when have events come through without a break?

    The proof is our own Lease: each renewal must come back through the watch. Moments are seconds
    on the controller's clock.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._echo = now

    def echo(self, now: float) -> None:
        """A renewal was seen."""
        if now - self._echo > _ALIVE_S:
            self._since = now
        self._echo = now

    def age(self, now: float) -> float:
        """Seconds since the last echo."""
        return now - self._echo

    def healthy_since(self, now: float) -> float:
        """The moment since when the watch is healthy; ``now`` while it is not."""
        return now if self.age(now) > _ALIVE_S else self._since


def operator_settings() -> kopf.OperatorSettings:
    """kopf without peering, posting, scanning and persistence."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = NoBase()
    settings.persistence.progress_storage = NoProgress()
    settings.watching.server_timeout = _SERVER_TIMEOUT_S
    settings.watching.client_timeout = _CLIENT_TIMEOUT_S
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 500
    settings.watching.field_selectors[(LEASES.api_version.split("/")[0], "leases")] = (
        f"metadata.name={LEASE_NAME}"
    )
    settings.networking.request_timeout = 30
    settings.process.ultimate_exiting_timeout = 30
    return settings


Seen = Callable[[str | None, Object], None]


class Watches:
    """The kopf operator of this process, and the lists that make up for what it cannot tell."""

    def __init__(self, store: Store, health: WatchHealth, kube: Kube, namespace: str) -> None:
        self._store = store
        self._health = health
        self._kube = kube
        self._namespace = namespace
        self._stale: set[str] = set()
        self._wake = asyncio.Event()
        self.stop = asyncio.Event()

    async def list_all(self) -> None:
        """Fill every table: no pass runs before this has ended."""
        for table in self._store.tables():
            await self._list(table)

    async def run(self) -> None:
        """Follow the events until ``stop`` is set or a signal arrives."""
        await kopf.operator(
            registry=self._registry(),
            settings=operator_settings(),
            clusterwide=True,
            standalone=True,
            stop_flag=self.stop,
        )

    async def resync(self) -> None:
        """List anew, for ever, what events cannot be trusted for.

        1. A kind that kopf has listed again: it tells of no deletion between two of its lists.
        2. Everything, every few seconds, while our own renewals do not come back: a connection
           may be dead without anybody having closed it, and kopf takes 70 s to find out.
        3. Everything now and then.
        """
        listed_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._wake.wait()
                await asyncio.sleep(1)
            except TimeoutError:
                deaf = self._health.age(time.time()) > _ALIVE_S
                if not deaf and time.monotonic() - listed_at < _RESYNC_S:
                    continue
                self._stale |= {table.ref.kind for table in self._store.tables()}
                listed_at = time.monotonic()
            self._wake.clear()
            kinds, self._stale = self._stale, set()
            await self._relist(kinds)

    async def _relist(self, kinds: set[str]) -> None:
        try:
            for table in self._store.tables():
                if table.ref.kind in kinds:
                    await self._list(table)
        except (ApiError, ApiUnreachableError) as err:
            log.warning("listing anew failed and is tried again: %s", err)
            self._stale |= kinds
            self._wake.set()

    async def _list(self, table: Table[Any]) -> None:
        objects, version = await self._kube.list_all(table.ref)
        table.replace(objects, version)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        for table in self._store.tables():
            _handle(registry, table.ref, self._seen_by(table))
        _handle(registry, LEASES, self._seen_lease)
        kopf.on.login(registry=registry)(_login)
        return registry

    def _seen_by(self, table: Table[Any]) -> Seen:
        def seen(kind: str | None, obj: Object) -> None:
            if kind == "DELETED":
                meta = obj["metadata"]
                key = (
                    f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else meta["name"]
                )
                table.drop(key, meta.get("uid") or "")
                return
            if kind is None:
                self._stale.add(table.ref.kind)
                self._wake.set()
            table.put(obj)

        return seen

    def _seen_lease(self, kind: str | None, obj: Object) -> None:
        meta = obj["metadata"]
        if kind != "DELETED" and meta.get("namespace") == self._namespace:
            self._health.echo(time.time())


def _handle(registry: kopf.OperatorRegistry, ref: Ref, seen: Seen) -> None:
    group, _, version = ref.api_version.rpartition("/")

    async def handler(event: Any, **_: Any) -> None:
        seen(event["type"], event["object"])

    kopf.on.event(group, version, ref.plural, registry=registry, id=f"see-{ref.plural}")(handler)


def _login(**context: Any) -> kopf.ConnectionInfo | None:
    """The service account in a pod, else the kubeconfig: as `Kube.connect` chooses."""
    return kopf.login_with_service_account(**context) or kopf.login_with_kubeconfig(**context)
