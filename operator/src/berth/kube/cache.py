"""What does a kind of object look like now? A local copy, kept current by list and watch."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Generic, TypeVar

from pydantic import ValidationError

from berth.api.meta import Resource
from berth.kube.client import ApiError, ApiUnreachableError, Kube, Object
from berth.kube.refs import Ref, ref_of

log = logging.getLogger(__name__)
T = TypeVar("T")
SILENCE_S = 100.0
"""Busy kinds have a bookmark every minute. A watch that is silent for longer may be dead, whatever TCP
says: it is asked for anew from the same version, which costs little where nothing has happened."""
Changed = Callable[[str, T | None], None]
"""Called with the key and the new value, None when it is gone."""


def key_of(obj: Object) -> str:
    """``namespace/name`` of a raw object."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


class Cache(Generic[T]):
    """One kind, listed once and then watched; objects that do not parse are logged and left out.

    ``synced`` is set after the first list. ``fresh_at`` (loop time) rises with every list, event
    and clean end of a watch; ``None`` while the API server is away.
    """

    def __init__(
        self,
        kube: Kube,
        ref: Ref,
        parse: Callable[[Object], T],
        *,
        changed: Changed[T] | None = None,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> None:
        self._kube = kube
        self._ref = ref
        self._parse = parse
        self._changed = changed
        self._scope = {"namespace": namespace, "labels": labels, "fields": fields}
        self._items: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.healthy_since: float | None = None

    def get(self, key: str) -> T | None:
        return self._items.get(key)

    def values(self) -> Iterable[T]:
        return self._items.values()

    def items(self) -> Iterable[tuple[str, T]]:
        return self._items.items()

    async def run(self) -> None:
        """List and watch for ever; backs off 0.2 s … 5 s while the server is away."""
        delay = 0.2
        while True:
            try:
                version = await self._list()
                delay = 0.2
                await self._watch(version)
            except ApiError as err:
                if not err.expired:
                    self.healthy_since = None
                    log.warning("watch of %s failed: %s", self._ref.plural, err)
                    delay = await _back_off(delay)
            except ApiUnreachableError as err:
                self.healthy_since = None
                log.warning("watch of %s: API server away: %s", self._ref.plural, err)
                delay = await _back_off(delay)

    async def _list(self) -> str:
        objects, version = await self._kube.list_all(self._ref, **self._scope)
        before = set(self._items)
        for obj in objects:
            before.discard(key_of(obj))
            self._put(obj)
        for key in before:
            self._drop(key)
        if self.healthy_since is None:
            self.healthy_since = asyncio.get_running_loop().time()
        self.synced.set()
        return version

    async def _watch(self, version: str) -> None:
        """Follow one watch after another until the server wants a new list."""
        while True:
            async for kind, obj in _lively(self._kube.watch(self._ref, version, **self._scope)):
                version = obj["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self._drop(key_of(obj))
                elif kind != "BOOKMARK":
                    self._put(obj)

    def _put(self, obj: Object) -> None:
        key = key_of(obj)
        try:
            value = self._parse(obj)
        except ValidationError as err:
            log.warning("%s %s does not parse and is left out: %s", self._ref.kind, key, err)
            return
        if self._items.get(key) == value:
            return
        self._items[key] = value
        if self._changed is not None:
            self._changed(key, value)

    def _drop(self, key: str) -> None:
        if self._items.pop(key, None) is not None and self._changed is not None:
            self._changed(key, None)


async def _lively(events: AsyncIterator[T]) -> AsyncIterator[T]:
    """The same events; they end when none comes for ``SILENCE_S``."""
    with contextlib.suppress(StopAsyncIteration, TimeoutError):
        while True:
            async with asyncio.timeout(SILENCE_S):
                event = await anext(events)
            yield event


async def _back_off(delay: float) -> float:
    # Jitter keeps a fleet of agents from asking a restarted API server all at once.
    await asyncio.sleep(delay * (0.5 + random.random()))
    return min(delay * 2, 5.0)


R = TypeVar("R", bound=Resource)


def typed_cache(
    kube: Kube,
    cls: type[R],
    *,
    changed: Changed[R] | None = None,
    namespace: str = "",
    fields: str = "",
) -> Cache[R]:
    """A cache of one of Berth's own kinds, parsed into its type."""
    return Cache(
        kube,
        ref_of(cls),
        cls.model_validate,
        changed=changed,
        namespace=namespace,
        fields=fields,
    )


def raw_cache(
    kube: Kube,
    ref: Ref,
    *,
    changed: Changed[Object] | None = None,
    namespace: str = "",
    labels: str = "",
    fields: str = "",
) -> Cache[Object]:
    """A cache of a kind that is not ours, as dicts."""
    return Cache(
        kube,
        ref,
        lambda obj: obj,
        changed=changed,
        namespace=namespace,
        labels=labels,
        fields=fields,
    )
