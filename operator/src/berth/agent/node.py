"""How is this node's NodeInventory kept? Made once, then written when something changed."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from berth.agent.inventory import Findings, inventory_status, is_worth_writing, memory_has_moved
from berth.agent.paths import Paths
from berth.agent.site import Api, Site
from berth.agent.statuses import MANAGER, Subject
from berth.api.inventory import InspectedPath, NodeInventory, NodeInventoryStatus
from berth.api.meta import OwnerReference
from berth.api.model import Model
from berth.kube.client import ApiError, ApiUnreachableError
from berth.kube.refs import NODES, ref_of

log = logging.getLogger(__name__)
_REF = ref_of(NodeInventory)
_RETRY_S = 1.0
_SETTLE_S = 1.0
"""After a runner came or went its memory is looked at once more when it has settled."""


@dataclass(frozen=True)
class NodeInfo:
    """What of the Node object matters here."""

    uid: str = ""
    labels: dict[str, str] = field(default_factory=dict)


async def read_node(kube: Api, name: str) -> NodeInfo:
    """Raises ApiError (but for a Node that is not there) and ApiUnreachableError.

    It is asked for now and then: a watch would need the right to list every Node.
    """
    try:
        meta = (await kube.get(NODES, name))["metadata"]
    except ApiError as err:
        if not err.not_found:
            raise
        return NodeInfo()
    return NodeInfo(meta.get("uid", ""), dict(meta.get("labels") or {}))


class NodeRecord:
    """The inventory of one node."""

    def __init__(self, site: Site, paths: Paths) -> None:
        self._site = site
        self._paths = paths
        self._subject = Subject(_REF, site.node)
        self._written: NodeInventoryStatus | None = None
        self._written_at = float("-inf")
        self._wake = asyncio.Event()
        self._hurry_until = float("-inf")
        self._started = site.stamp()
        self._inspection: asyncio.Task[None] | None = None
        self._found: list[InspectedPath] = []
        """Of the last inspection; after a restart of the one before, until there is a new one."""
        self.info = NodeInfo()
        self.epoch = 0
        self.guard_kills = 0
        self.claims_used = 0
        self.is_open = False

    async def open(self) -> None:
        """Make the object if need be, and read what the agent before this one told."""
        while not self.is_open:
            try:
                self.info = await read_node(self._site.kube, self._site.node)
                await self._open()
            except (ApiError, ApiUnreachableError) as err:
                log.warning("NodeInventory %s not opened yet: %s", self._site.node, err)
                await asyncio.sleep(_RETRY_S)

    async def _open(self) -> None:
        body: dict[str, Any] = {"spec": {}}
        if self.info.uid:
            # Owned by the Node: when that is deleted, the inventory goes with it.
            owner = OwnerReference(
                api_version="v1", kind="Node", name=self._site.node, uid=self.info.uid
            )
            body["metadata"] = {"ownerReferences": [owner.wire()]}
        raw = await self._site.kube.apply(_REF, self._site.node, body, manager=MANAGER)
        found = NodeInventory.model_validate(raw)
        self.epoch = found.status.epoch
        self.guard_kills = found.status.guard_kills
        self._found = found.status.paths
        if found.status != NodeInventoryStatus():
            self._written = found.status
        self.is_open = True

    async def follow_node(self, changed: Callable[[], None]) -> None:
        """Look at the Node's labels for ever: they say which Residency governs."""
        while True:
            await asyncio.sleep(self._site.timing.node_s)
            try:
                info = await read_node(self._site.kube, self._site.node)
            except (ApiError, ApiUnreachableError) as err:
                log.warning("Node %s not read: %s", self._site.node, err)
                continue
            if info != self.info:
                self.info = info
                changed()

    def look(self) -> None:
        """Something changed: look now."""
        self._wake.set()

    def hurry(self) -> None:
        """A runner came or went: what it took or freed is told without waiting out the 10 s."""
        self._hurry_until = self._site.clock() + _SETTLE_S
        self._wake.set()

    async def wait(self) -> None:
        """Until it is time for the next look."""
        hurries = self._site.clock() < self._hurry_until
        pause = _SETTLE_S if hurries else self._site.timing.inventory_s
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            return

    async def keep(self, epoch: int, models: Iterable[Model], allowed: Iterable[str]) -> bool:
        """Look, and write if it is worth it. True when free memory was among what moved."""
        self._wake.clear()
        hurry = self._site.clock() <= self._hurry_until + _SETTLE_S
        self.epoch = max(self.epoch, epoch)
        if self._inspection is None:
            self._inspection = asyncio.create_task(self._inspect(list(models), list(allowed)))
        status = await self._look()
        now = self._site.clock()
        passed = now - self._written_at
        before = self._written
        if not is_worth_writing(before, status, passed_s=passed, hurry=hurry):
            return False
        self._written, self._written_at = status, now
        self._site.writer.put(self._subject, status.wire())
        return before is None or memory_has_moved(before, status)

    async def _inspect(self, models: list[Model], allowed: list[str]) -> None:
        """Beside everything else: a header is read in up to a minute."""
        try:
            found = await self._paths.inspect(models, allowed)
        finally:
            self._inspection = None
        if found != self._found:
            self._found = found
            self.look()

    async def close(self) -> None:
        if self._inspection is not None:
            self._inspection.cancel()
            await asyncio.gather(self._inspection, return_exceptions=True)

    async def _look(self) -> NodeInventoryStatus:
        sample = await self._site.live.sample(max_age_s=0.5)
        host = self._site.live.host
        disk = await asyncio.to_thread(host.disk)
        files = await asyncio.to_thread(self._site.files.held)
        return inventory_status(
            Findings(
                sample=sample,
                disk=disk,
                cpus=host.cpus(),
                files=files,
                paths=self._found,
                epoch=self.epoch,
                started=self._started,
                guard_kills=self.guard_kills,
                claims_used=self.claims_used,
                now=self._site.stamp(),
            ),
            self._written.conditions if self._written else (),
        )
