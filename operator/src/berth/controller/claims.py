"""How do the files of a claim become facts? A pod looks at them; its last words are the answer.

Nothing of this outlives the process: the pods are found again by their names, and facts that a
former leader has stored count as long as the source is the same.
"""

import logging
from collections.abc import AsyncIterator, Callable, Container, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from berth.api.meta import ANNOTATION_SOURCE_HASH, ANNOTATION_SPEC_HASH
from berth.api.model import FactsStatus, Model
from berth.api.profile import PodTemplate
from berth.api.runner import Mount
from berth.controller.backoff import pause_s
from berth.controller.inspections import (
    UNSCHEDULED_S,
    claim_facts,
    claim_paths,
    judge_inspection,
)
from berth.controller.parts import mounted_files
from berth.controller.pricing import Files, Unpriceable
from berth.controller.removal import delete_pod
from berth.controller.store import Store
from berth.controller.views import Inspects, PodView
from berth.controller.volumes import Volume, holders, nodes_seeing, read_volume
from berth.headers.report import Results
from berth.kube.client import ApiError, ApiUnreachableError, Kube, Object
from berth.kube.refs import PODS
from berth.manifests.inspect import Inspection, inspect_pod
from berth.manifests.names import inspect_name
from berth.reasons import Reason

log = logging.getLogger(__name__)
Start = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(frozen=True)
class ClaimWork:
    """What looking at claims works with. ``start`` runs work beside the passes."""

    kube: Kube
    store: Store
    image: str
    changed: Callable[[], None]
    clock: Callable[[], float]
    start: Start


@dataclass
class _Claim:
    """What is known of one Model's claim."""

    source: str
    facts: FactsStatus | None = None
    volume: Volume | None = None
    refusal: Unpriceable | None = None
    failures: int = 0
    retry_at: float | None = None
    busy: bool = False
    seen: tuple[str, float] = ("", 0.0)
    """The pod that looks at it, by uid, and when it was first seen."""
    heard: str = ""
    """The pod whose end is known, by uid: it is kept until the next try, for people to look at."""

    def failed(self, why: Unpriceable, now: float) -> None:
        self.refusal = why
        self.failures += 1
        self.retry_at = now + pause_s(self.failures, why.word or why.reason)

    def tell(self) -> None:
        """Raise why there are no facts yet; facts that are known go on while more is asked."""
        if self.refusal is not None:
            raise self.refusal
        if self.facts is None:
            raise Unpriceable(Reason.READING_HEADER, "a pod looks at the files on its claim")

    def wakes_at(self) -> list[float]:
        """Moments at which time alone may change what is said of it."""
        moments = [] if self.retry_at is None else [self.retry_at]
        if self.facts is None and self.seen[0] != self.heard:
            moments.append(self.seen[1] + UNSCHEDULED_S)
        return moments


@dataclass(frozen=True)
class Asked:
    """One Model in one pass."""

    key: str
    model: Model
    source: str
    template: PodTemplate | None
    now: float

    @property
    def pod_key(self) -> str:
        meta = self.model.metadata
        return f"{meta.namespace}/{inspect_name(meta.namespace, meta.name, self.source)}"


class ClaimDesk:
    """The files of Models whose source is a claim."""

    def __init__(self, work: ClaimWork) -> None:
        self._work = work
        self._claims: dict[str, _Claim] = {}
        self._wanted: set[str] = set()
        """Keys of the inspecting pods that this pass has a use for."""
        self._deleting: set[str] = set()

    def next_retry(self) -> float | None:
        """When a claim is to be looked at again although nothing has changed."""
        now = self._work.clock()
        times = (time for claim in self._claims.values() for time in claim.wakes_at())
        return min((time for time in times if time > now), default=None)

    def forget(self, key: str) -> None:
        """The files are not what was found: look again."""
        claim = self._claims.get(key)
        if claim is not None and not claim.busy:
            self._claims[key] = _Claim(claim.source)

    def forget_volume(self, key: str) -> None:
        """A runner's pod could not be scheduled: the claim may have another volume than it had."""
        claim = self._claims.get(key)
        if claim is not None and claim.facts is not None and not claim.busy:
            claim.volume = None

    def files(self, asked: Asked, stored: FactsStatus | None) -> Files | None:
        """The files of a Model; None while they are being looked at. Raises Unpriceable.

        1. The claim and its volume say which nodes see it; no claim: no pod.
        2. Facts of this source that are stored count. Otherwise a pod looks.
        """
        name, paths = claim_paths(asked.model)
        claim = self._claim(asked, stored)
        held_on = self._held_on(claim, asked.model.metadata.namespace, name)
        if claim.facts is None and claim.volume is not None:
            nodes, image, template = tuple(sorted(held_on)), self._work.image, asked.template
            self._look(claim, asked, Inspection(name, paths, asked.source, image, nodes, template))
        elif claim.facts is None:
            self._wanted.add(asked.pod_key)
        if claim.volume is None:
            self._when_due(claim, asked.now, lambda: self._see_volume(claim, asked, name))
        if claim.volume is None or claim.facts is None:
            claim.tell()
            return None
        return Files(
            claim.facts,
            tuple(mounted_files(asked.model, claim.facts)),
            mount=Mount(persistent_volume_claim=name),
            local_nodes=nodes_seeing(claim.volume, self._work.store.nodes, held_on),
        )

    def sweep(self, models: Container[str]) -> None:
        """At the end of a pass: delete the inspecting pods without a use, forget who is gone."""
        self._claims = {key: claim for key, claim in self._claims.items() if key in models}
        wanted, self._wanted = self._wanted, set()
        pods = [pod for pod in self._work.store.pods if pod.inspects is not None]
        self._deleting &= {pod.uid for pod in pods}
        for pod in pods:
            if pod.key not in wanted and not pod.deleting and pod.uid not in self._deleting:
                self._deleting.add(pod.uid)
                self._work.start(self._delete(pod))

    def _claim(self, asked: Asked, stored: FactsStatus | None) -> _Claim:
        known = self._claims.get(asked.key)
        if known is None or known.source != asked.source:
            known = self._claims[asked.key] = _Claim(asked.source, facts=stored)
        return known

    def _held_on(self, claim: _Claim, namespace: str, name: str) -> frozenset[str]:
        """The nodes that mount a volume of one node at a time now; of others nobody asks."""
        if claim.volume is None or not claim.volume.one_node:
            return frozenset()
        return holders(self._work.store.pods, namespace, name)

    def _when_due(
        self, claim: _Claim, now: float, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        if claim.busy or (claim.retry_at is not None and now < claim.retry_at):
            return
        claim.busy, claim.retry_at = True, None
        self._work.start(work())

    # The pod.

    def _look(self, claim: _Claim, asked: Asked, question: Inspection) -> None:
        """One step: create the pod, hear what it says, or leave a useless one to be deleted."""
        if not question.image:
            text = "no image is set for the pod that looks at its files: set BERTH_IMAGE_OPERATOR"
            raise Unpriceable(Reason.UNSUPPORTED, text)
        body, pod = inspect_pod(asked.model, question), self._work.store.pods.get(asked.pod_key)
        if pod is None:
            self._when_due(claim, asked.now, lambda: self._create(claim, asked, body))
        elif not pod.deleting and not _answers(pod, asked.model, body):
            # Of a former Model, or asked in another way: the next one is asked at once.
            claim.retry_at = None
        elif pod.uid != claim.heard:
            self._hear(claim, asked, pod)
        elif claim.retry_at is not None and asked.now < claim.retry_at:
            self._wanted.add(pod.key)
        else:
            claim.retry_at = None

    def _hear(self, claim: _Claim, asked: Asked, pod: PodView) -> None:
        if claim.seen[0] != pod.uid:
            claim.seen = (pod.uid, asked.now)
        found = judge_inspection(pod, asked.now - claim.seen[1])
        if found.results is not None:
            self._take(claim, asked, found.results)
            return
        self._wanted.add(pod.key)
        if not found.over:
            claim.refusal = found.why
        elif found.why is not None:
            claim.heard = pod.uid
            claim.failed(found.why, asked.now)
            log.warning(
                "model %s: %s: %s", asked.key, found.why.word or found.why.reason, found.why.message
            )

    def _take(self, claim: _Claim, asked: Asked, results: Results) -> None:
        """The facts are found: the pod is not wanted any more."""
        try:
            facts = claim_facts(asked.model, results, asked.source)
        except (KeyError, ValueError) as err:
            why = Unpriceable(Reason.INVALID_HEADER, f"its files say what cannot be: {err}"[:900])
            claim.failed(why, asked.now)
            return
        log.info("model %s: a pod has read the header of its files", asked.key)
        claim.facts, claim.refusal, claim.failures, claim.retry_at = facts, None, 0, None
        # A claim that waited for its first pod has a volume only now.
        claim.volume = None
        self._work.changed()

    # Work beside the passes.

    async def _see_volume(self, claim: _Claim, asked: Asked, name: str) -> None:
        namespace = asked.model.metadata.namespace
        async with self._guarded(claim, asked):
            volume = await read_volume(self._work.kube, namespace, name)
            if volume is None:
                text = f"there is no PersistentVolumeClaim {name} in namespace {namespace}"
                raise Unpriceable(Reason.CLAIM_NOT_FOUND, text)
            claim.volume, claim.refusal, claim.failures = volume, None, 0

    async def _create(self, claim: _Claim, asked: Asked, body: Object) -> None:
        async with self._guarded(claim, asked):
            try:
                answer = await self._work.kube.create(PODS, body, asked.model.metadata.namespace)
            except ApiError as err:
                if err.conflict:
                    # It is there already: the watch will show it.
                    return
                if err.status in (403, 422):
                    text = f"the pod that looks at its files was refused: {err.message}"
                    raise Unpriceable(Reason.ADMISSION_ERROR, text) from err
                raise
            self._work.store.pods.put(answer)

    @asynccontextmanager
    async def _guarded(self, claim: _Claim, asked: Asked) -> AsyncIterator[None]:
        """One Model's claim must not cost the others theirs: a failure is told and tried again."""
        try:
            yield
        except Unpriceable as err:
            claim.failed(err, self._work.clock())
        except (ApiError, ApiUnreachableError) as err:
            claim.failed(Unpriceable(Reason.SOURCE_UNREACHABLE, str(err)), self._work.clock())
        except Exception as err:
            log.exception("looking at the claim of model %s failed", asked.key)
            text = f"{type(err).__name__}: {err}"
            claim.failed(Unpriceable(Reason.INTERNAL_ERROR, text), self._work.clock())
        finally:
            claim.busy = False
            self._work.changed()

    async def _delete(self, pod: PodView) -> None:
        try:
            await delete_pod(self._work.kube, self._work.store, pod)
        except (ApiError, ApiUnreachableError) as err:
            log.warning("pod %s stays for now: %s", pod.key, err)
            self._deleting.discard(pod.uid)


def _answers(pod: PodView, model: Model, body: Object) -> bool:
    """Whether the pod is this very Model's, and asks just what would be asked now."""
    annotations = body["metadata"]["annotations"]
    wanted = Inspects(
        model_uid=model.metadata.uid,
        source_hash=annotations[ANNOTATION_SOURCE_HASH],
        spec_hash=annotations[ANNOTATION_SPEC_HASH],
    )
    return pod.inspects == wanted
