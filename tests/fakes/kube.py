"""What would an API server do? Just enough of one, in memory, for tests without etcd.

It lists, watches, creates, applies (a status by its manager's own subtree alone), deletes, and can
be away. Every write is kept in `writes`.
"""

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from berth.kube.client import ApiError, ApiUnreachableError
from berth.kube.refs import Ref

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace, name."""


@dataclass(frozen=True)
class Write:
    """One write that was accepted."""

    verb: str
    plural: str
    key: str
    body: Object
    manager: str = ""
    subresource: str = ""


@dataclass
class FakeKube:
    """A `berth.kube.client.Kube` without a server."""

    objects: dict[Key, Object] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    away: bool = False
    refuses: Callable[[Write], ApiError | None] = lambda _: None
    _versions: Any = field(default_factory=lambda: itertools.count(1))
    _log: list[tuple[int, str, str, Object]] = field(default_factory=list)
    """(version, plural, kind of event, object)."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    # -- what a test does as somebody else -------------------------------------------------------

    def put(self, ref: Ref, obj: Object) -> Object:
        """Create or replace an object; a uid and a time are made up where there is none."""
        obj = copy.deepcopy(obj)
        meta = obj.setdefault("metadata", {})
        meta.setdefault("uid", f"uid-{meta['name']}")
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        obj.setdefault("apiVersion", ref.api_version)
        obj.setdefault("kind", ref.kind)
        key = (ref.plural, meta.get("namespace", ""), meta["name"])
        self._store(key, obj, "MODIFIED" if key in self.objects else "ADDED")
        return self.objects[key]

    def change(self, ref: Ref, name: str, namespace: str, edit: Callable[[Object], None]) -> None:
        """Edit an object in place, as its owner would."""
        obj = copy.deepcopy(self.objects[ref.plural, namespace, name])
        edit(obj)
        self._store((ref.plural, namespace, name), obj, "MODIFIED")

    def remove(self, ref: Ref, name: str, namespace: str = "") -> None:
        """Delete an object at once."""
        obj = self.objects.pop((ref.plural, namespace, name))
        self._tell(ref.plural, "DELETED", obj)

    def status(self, ref: Ref, name: str, namespace: str = "") -> Object:
        """The status of an object; empty when there is none."""
        obj = self.objects.get((ref.plural, namespace, name), {})
        found: Object = obj.get("status") or {}
        return found

    # -- what a Kube does ------------------------------------------------------------------------

    async def get(self, ref: Ref, name: str, namespace: str = "") -> Object:
        self._check()
        self.reads[f"get {ref.plural}"] += 1
        try:
            return copy.deepcopy(self.objects[ref.plural, namespace, name])
        except KeyError:
            raise _not_found(ref, name) from None

    async def list_all(
        self, ref: Ref, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        self._check()
        self.reads[f"list {ref.plural}"] += 1
        found = [
            copy.deepcopy(obj)
            for (plural, _, _), obj in self.objects.items()
            if plural == ref.plural and _matches(obj, namespace, labels, fields)
        ]
        return found, str(self._log[-1][0] if self._log else 0)

    async def watch(
        self, ref: Ref, version: str, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        seen = int(version)
        while True:
            self._check()
            for number, plural, kind, obj in list(self._log):
                if number <= seen or plural != ref.plural:
                    continue
                if _matches(obj, namespace, labels, fields):
                    yield kind, copy.deepcopy(obj)
            seen = max(seen, self._log[-1][0] if self._log else 0)
            await self._wait_beyond(seen)

    async def create(self, ref: Ref, body: Object, namespace: str = "") -> Object:
        self._accept(Write("create", ref.plural, body["metadata"].get("name", ""), body))
        obj = copy.deepcopy(body)
        if namespace:
            obj["metadata"]["namespace"] = namespace
        return self.put(ref, obj)

    async def apply(
        self,
        ref: Ref,
        name: str,
        body: Object,
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        key = (ref.plural, namespace, name)
        obj = copy.deepcopy(self.objects.get(key))
        if obj is None and subresource:
            self._check()
            raise _not_found(ref, name)
        text = f"{namespace}/{name}" if namespace else name
        self._accept(Write("apply", ref.plural, text, copy.deepcopy(body), manager, subresource))
        if obj is None:
            return self.put(ref, {**body, "metadata": {"name": name, **body.get("metadata", {})}})
        changed = copy.deepcopy(obj)
        if subresource == "status":
            changed["status"] = {**(obj.get("status") or {}), **copy.deepcopy(body["status"])}
        else:
            changed["spec"] = {**(obj.get("spec") or {}), **copy.deepcopy(body.get("spec") or {})}
        if changed != obj:
            self._store(key, changed, "MODIFIED")
        return copy.deepcopy(self.objects[key])

    async def patch_merge(
        self, ref: Ref, name: str, body: Object, *, namespace: str = ""
    ) -> Object:
        self._accept(Write("patch", ref.plural, name, copy.deepcopy(body)))
        if (ref.plural, namespace, name) not in self.objects:
            raise _not_found(ref, name)
        self.change(ref, name, namespace, lambda obj: obj["spec"].update(body.get("spec") or {}))
        return copy.deepcopy(self.objects[ref.plural, namespace, name])

    async def delete(self, ref: Ref, name: str, namespace: str = "", **_: Any) -> bool:
        self._accept(Write("delete", ref.plural, name, {}))
        if (ref.plural, namespace, name) not in self.objects:
            return False
        self.remove(ref, name, namespace)
        return True

    # -- inside ----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.away:
            raise ApiUnreachableError("the fake API server is away")

    def _accept(self, write: Write) -> None:
        self._check()
        error = self.refuses(write)
        if error is not None:
            raise error
        self.writes.append(write)

    def _store(self, key: Key, obj: Object, kind: str) -> None:
        self.objects[key] = obj
        self._tell(key[0], kind, obj)

    def _tell(self, plural: str, kind: str, obj: Object) -> None:
        number = next(self._versions)
        obj["metadata"]["resourceVersion"] = str(number)
        self._log.append((number, plural, kind, copy.deepcopy(obj)))
        self.wake()

    def wake(self) -> None:
        """Have every watch look again (after `away` changed)."""

        async def notify() -> None:
            async with self._news:
                self._news.notify_all()

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a test that builds its world before the loop runs
        self._notifying = loop.create_task(notify())

    async def _wait_beyond(self, seen: int) -> None:
        async with self._news:
            await self._news.wait_for(
                lambda: self.away or (bool(self._log) and self._log[-1][0] > seen)
            )


def _matches(obj: Object, namespace: str, labels: str, fields: str) -> bool:
    meta = obj["metadata"]
    if namespace and meta.get("namespace") != namespace:
        return False
    for part in filter(None, labels.split(",")):
        key, _, value = part.partition("=")
        found_label = (meta.get("labels") or {}).get(key.removesuffix("!"))
        if (found_label == value) is key.endswith("!"):
            return False
    for part in filter(None, fields.split(",")):
        path, _, value = part.partition("=")
        found: Any = obj
        for name in path.split("."):
            found = (found or {}).get(name)
        if (found or "") != value:
            return False
    return True


def _not_found(ref: Ref, name: str) -> ApiError:
    return ApiError(404, "NotFound", f"{ref.plural} {name!r} not found")
