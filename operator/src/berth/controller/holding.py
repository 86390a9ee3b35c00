"""How do copies of weights come to be in host memory, and go? A plan is made, and pods are written."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from berth.controller.apply import Hands
from berth.controller.copies import Shelf
from berth.controller.removal import delete_pod
from berth.controller.telling import Happening
from berth.controller.views import PodView
from berth.kube.client import ApiError
from berth.kube.refs import PODS
from berth.manifests.holder import holder_claim, holder_name, holder_pod
from berth.planner.actions import Plan
from berth.planner.copies import CopyPlan, DropCopy, MakeCopy, plan_copies
from berth.planner.state import State

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holding:
    """The copies of one pass."""

    hands: Hands
    shelf: Shelf

    async def run(self, state: State, plan: Plan) -> CopyPlan:
        """Decide and write; what the API server refuses is tried again by a later pass."""
        pods = [pod for pod in self.hands.store.pods if pod.holds is not None]
        self.shelf.adopt(pods)
        self.shelf.saw(state)
        for key in self.shelf.tally.reloaded:
            model = self.hands.store.models.get(key)
            if model is not None:
                message = "its weights are read from disk again: no copy of them was in host memory"
                self.hands.teller.tell(model, Happening.RELOADED, message)
        decided = plan_copies(state, plan, self.shelf.loads, holder_claim)
        if not self.hands.holders.image:
            return decided
        by_key = {(pod.node, pod.holds.sha256): pod for pod in pods if pod.holds is not None}
        for pod in pods:
            if pod.finished and not pod.deleting and pod.holds is not None:
                log.warning("copy on %s ended: %s", pod.node, pod.reason or pod.phase)
                self.shelf.failed(pod.node, pod.holds.sha256, state.now)
                await self._delete(pod)
        for drop in decided.drop:
            await self._drop(drop, by_key)
        for make in decided.make:
            if self.shelf.may_try(make.node, make.sha256, state.now):
                await self._make(make)
        return decided

    async def _make(self, make: MakeCopy) -> None:
        body = holder_pod(make.node, make.sha256, make.size, self.hands.holders)
        try:
            answer = await self.hands.kube.create(PODS, body, self.hands.holders.namespace)
        except ApiError as err:
            name = holder_name(make.node, make.sha256)
            log.warning("copy %s was refused: %s", name, err)
            self.shelf.failed(make.node, make.sha256, self.hands.clock())
            return
        log.info("%s is copied into the memory of %s", make.sha256[:12], make.node)
        self.hands.store.pods.put(answer)

    async def _drop(self, drop: DropCopy, pods: Mapping[tuple[str, str], PodView]) -> None:
        pod = pods.get((drop.node, drop.sha256))
        if pod is None or pod.deleting:
            return
        log.info("the copy of %s on %s is dropped", drop.sha256[:12], drop.node)
        self.shelf.tally.evictions += 1
        await self._delete(pod)

    async def _delete(self, pod: PodView) -> None:
        await delete_pod(self.hands.kube, self.hands.store, pod)
