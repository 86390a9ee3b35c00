"""How do prices stay current? Headers are read and needs worked out beside the passes, not in them."""

import asyncio
import base64
import logging
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from berth.api.inventory import NodeInventory
from berth.api.meta import SecretKeyRef
from berth.api.model import FactsStatus, Model
from berth.api.profile import Profile
from berth.api.runner import Mount
from berth.controller.backoff import pause_s
from berth.controller.claims import Asked, ClaimDesk, ClaimWork
from berth.controller.inspections import reason_of, refusal_of
from berth.controller.memo import Memo
from berth.controller.parts import (
    Part,
    facts_status,
    header_source,
    host_path_of,
    inspected,
    mounted_files,
    parts_of,
)
from berth.controller.priced import Priced
from berth.controller.pricing import Files, PriceSettings, Unpriceable, price
from berth.controller.resolve import resolve, source_hash
from berth.controller.store import Store
from berth.headers import HeaderError, HeaderRequest, HeaderResult
from berth.headers.pool import HeaderPool
from berth.kube.client import ApiError, ApiUnreachableError, Kube
from berth.kube.refs import SECRETS
from berth.reasons import Reason

log = logging.getLogger(__name__)

_ESTIMATES_AT_ONCE = 2
_AGAIN_S = 600.0
"""Between two looks at a URL whose file may be replaced: one request for a few KiB each."""


@dataclass(frozen=True)
class SourceSettings:
    """Where sources may be."""

    endpoint: str
    allow: tuple[str, ...] = ()


@dataclass
class _Reading:
    """What is known of one Model's source."""

    source: str
    facts: FactsStatus | None = None
    refusal: Unpriceable | None = None
    failures: int = 0
    retry_at: float | None = None
    busy: bool = False
    again_at: float = 0.0
    """When a source that may change under its name is looked at again."""


@dataclass(frozen=True)
class Deskwork:
    """What the desk works with."""

    kube: Kube
    store: Store
    pool: HeaderPool
    sources: SourceSettings
    settings: PriceSettings
    changed: Callable[[], None]
    clock: Callable[[], float]
    inspect_image: str = ""
    """Image of the pods that look at the files of a claim."""


class PriceDesk:
    """The price of each Model by key; ``changed`` is called whenever one is new."""

    def __init__(self, work: Deskwork) -> None:
        self._work = work
        self._readings: dict[str, _Reading] = {}
        self._prices: dict[str, Priced] = {}
        self._marks: dict[str, Hashable] = {}
        self._sources: Memo[str] = Memo()
        self._estimating = asyncio.Semaphore(_ESTIMATES_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._claims = ClaimDesk(
            ClaimWork(
                kube=work.kube,
                store=work.store,
                image=work.inspect_image,
                changed=work.changed,
                clock=work.clock,
                start=self._start,
            )
        )

    def prices(self) -> dict[str, Priced]:
        return dict(self._prices)

    def next_retry(self) -> float | None:
        """When a source that failed is to be asked again."""
        times = [r.retry_at for r in self._readings.values()] + [self._claims.next_retry()]
        return min((time for time in times if time is not None), default=None)

    def forget(self, key: str) -> None:
        """The files are not what the header said: read it again."""
        reading = self._readings.get(key)
        if reading is not None and not reading.busy:
            reading.facts, reading.refusal, reading.retry_at = None, None, 0.0
        self._claims.forget(key)

    def forget_volume(self, key: str) -> None:
        """A runner could not be scheduled: where its claim can be mounted is asked again."""
        self._claims.forget_volume(key)

    def refresh(self, now: float) -> None:
        """Look at every Model; start whatever is out of date. Quick: nothing is waited for."""
        models = {m.key: m for m in self._work.store.models if not m.metadata.deletion_timestamp}
        for key in [key for key in self._readings if key not in models]:
            self._readings.pop(key)
            self._marks.pop(key, None)
            self._prices.pop(key, None)
        inventories = list(self._work.store.inventories)
        for key, model in models.items():
            try:
                self._refresh(key, model, inventories, now)
            except Unpriceable as err:
                self._marks.pop(key, None)
                self._block(key, model, err)
                # It is kept and raised again: with its trace it would keep every pass until now.
                err.__traceback__ = None
        self._sources.forget_untouched()
        self._claims.sweep(models)

    def _refresh(
        self, key: str, model: Model, inventories: list[NodeInventory], now: float
    ) -> None:
        profile = self._profile(model)
        reading = self._reading(key, model)
        if model.spec.source.path is None or model.spec.source.path.host_path:
            files = self._files(key, model, reading, inventories, now)
        else:
            template = resolve(model, profile).pod_template
            asked = Asked(key, model, reading.source, template, now)
            files = self._claims.files(asked, reading.facts)
        if files is None:
            return
        mark = _mark(model, profile, files)
        if self._marks.get(key) != mark:
            self._marks[key] = mark
            self._start(self._price(key, model, profile, files, mark))

    def _profile(self, model: Model) -> Profile | None:
        name = model.spec.profile
        if not name:
            return None
        profile = self._work.store.profiles.get(f"{model.metadata.namespace}/{name}")
        if profile is None:
            message = f"there is no profile {name} in namespace {model.metadata.namespace}"
            raise Unpriceable(Reason.PROFILE_NOT_FOUND, message)
        return profile

    def _reading(self, key: str, model: Model) -> _Reading:
        """What is known of the source; what a former leader has read is taken from the status."""
        source = self._sources.get(key, (model.spec,), lambda: source_hash(model))
        known = self._readings.get(key)
        if known is not None and known.source == source:
            return known
        stored = model.status.facts
        fits = stored is not None and stored.source_hash == source and stored.record
        fresh = _Reading(source, facts=stored if fits else None)
        # Spread out, so that a new leader does not ask for everything at once.
        fresh.again_at = self._work.clock() + _AGAIN_S / 2 + crc32(key.encode()) % int(_AGAIN_S)
        self._readings[key] = fresh
        if known is not None:
            # The price of other files must not be used for these.
            self._prices.pop(key, None)
            self._marks.pop(key, None)
        return fresh

    def _files(
        self,
        key: str,
        model: Model,
        reading: _Reading,
        inventories: list[NodeInventory],
        now: float,
    ) -> Files | None:
        """The files of a Model; None while they are being read."""
        if model.spec.source.path is not None:
            return self._host_files(model, reading, inventories)
        if reading.facts is not None:
            if _may_change(model) and now >= reading.again_at and not reading.busy:
                reading.busy, reading.again_at = True, now + _AGAIN_S
                self._start(self._read_again(key, model, reading))
            return Files(reading.facts, tuple(reading.facts.files))
        due = reading.retry_at is None or now >= reading.retry_at
        if not reading.busy and due:
            reading.busy = True
            self._start(self._read(key, model, reading))
        if reading.refusal is not None:
            raise reading.refusal
        return None

    def _host_files(
        self, model: Model, reading: _Reading, inventories: list[NodeInventory]
    ) -> Files:
        if len(parts_of(model)) > 1:
            text = "a projector, adapters or a draft beside a hostPath are not supported: put all on one claim"
            raise Unpriceable(Reason.UNSUPPORTED, text)
        where = host_path_of(model)
        found = inspected(where, inventories)
        if found.facts is None:
            refusal = found.refusal
            if refusal is None:
                raise Unpriceable(Reason.READING_HEADER, f"no node has looked at {where} yet")
            raise Unpriceable(
                reason_of(refusal.reason or ""), refusal.message or "", word=refusal.reason or ""
            )
        facts = found.facts.model_copy(update={"source_hash": reading.source})
        path = model.spec.source.path
        return Files(
            facts,
            tuple(mounted_files(model, facts)),
            mount=Mount(host_path=path.host_path if path else None),
            local_nodes=found.nodes,
        )

    # Work beside the passes.

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, key: str, model: Model, reading: _Reading) -> None:
        """Read the headers of all parts; a failure is told and tried again later."""
        try:
            parts = parts_of(model)
            results = {part.name: await self._read_part(model, part) for part in parts}
            reading.facts = facts_status(results, parts, reading.source)
            reading.refusal, reading.failures, reading.retry_at = None, 0, None
        except HeaderError as err:
            self._failed(reading, refusal_of(err))
        except Unpriceable as err:
            self._failed(reading, err)
        except (ApiError, ApiUnreachableError) as err:
            self._failed(reading, Unpriceable(Reason.SECRET_NOT_FOUND, str(err)))
        except Exception as err:
            # One Model's header must not cost the others theirs.
            log.exception("reading the header of model %s failed", key)
            text = f"{type(err).__name__}: {err}"
            self._failed(reading, Unpriceable(Reason.INTERNAL_ERROR, text))
        finally:
            reading.busy = False
            self._work.changed()

    async def _read_again(self, key: str, model: Model, reading: _Reading) -> None:
        """Whether the same address has other content by now; while nobody can tell, it has not."""
        try:
            parts = parts_of(model)
            results = {part.name: await self._read_part(model, part) for part in parts}
            found = facts_status(results, parts, reading.source)
            if reading.facts is not None and found.digest != reading.facts.digest:
                log.info("model %s: its source has other content than it had", key)
                reading.facts = found
                self._work.changed()
        except (HeaderError, Unpriceable, ApiError, ApiUnreachableError) as err:
            log.info("model %s: its source was not looked at again: %s", key, err)
        finally:
            reading.busy = False

    def _failed(self, reading: _Reading, why: Unpriceable) -> None:
        reading.refusal = why
        reading.failures += 1
        reading.retry_at = self._work.clock() + pause_s(reading.failures, why.word)

    async def _read_part(self, model: Model, part: Part) -> HeaderResult:
        source = header_source(part.source)
        if source is None:
            raise Unpriceable(Reason.UNSUPPORTED, _unsupported(part))
        hub = part.source.hugging_face
        namespace = model.metadata.namespace
        token = await self._token(namespace, hub.token_secret_ref) if hub else None
        request = HeaderRequest(
            source=source,
            endpoint=self._work.sources.endpoint,
            token=token,
            allow=self._work.sources.allow,
            namespace=namespace,
        )
        return await self._work.pool.read(request)

    async def _token(self, namespace: str, ref: SecretKeyRef | None) -> str | None:
        """A token by name; no right to list Secrets is needed, and none is had."""
        if ref is None:
            return None
        try:
            secret = await self._work.kube.get(SECRETS, ref.name, namespace)
        except ApiError as err:
            todo = f"run `berth grant-token {ref.name} -n {namespace}`" if err.status == 403 else ""
            text = f"the Secret {ref.name} cannot be read ({err.reason}) {todo}".strip()
            raise Unpriceable(Reason.SECRET_NOT_FOUND, text) from err
        value = (secret.get("data") or {}).get(ref.key)
        if value is None:
            raise Unpriceable(
                Reason.SECRET_NOT_FOUND, f"the Secret {ref.name} has no key {ref.key}"
            )
        return base64.b64decode(value).decode().strip()

    async def _price(
        self, key: str, model: Model, profile: Profile | None, files: Files, mark: Hashable
    ) -> None:
        fields, name = resolve(model, profile), model.spec.profile or ""
        try:
            async with self._estimating:
                found = await asyncio.to_thread(
                    price, model, fields, files, self._work.settings, profile=name
                )
        except Unpriceable as err:
            self._block(key, model, err, facts=files.facts)
        except Exception as err:
            log.exception("pricing model %s failed", key)
            text = f"{type(err).__name__}: {err}"
            self._block(key, model, Unpriceable(Reason.INTERNAL_ERROR, text), facts=files.facts)
        else:
            if self._marks.get(key) == mark:
                self._prices[key] = found
        self._work.changed()

    def _block(
        self, key: str, model: Model, why: Unpriceable, *, facts: FactsStatus | None = None
    ) -> None:
        """No price, and why; a runner that is up goes on with the settings that it has."""
        before = self._prices.get(key, Priced())
        self._prices[key] = replace(
            Priced(
                source_hash=source_hash(model),
                profile=model.spec.profile or "",
                generation=model.metadata.generation,
                fields=before.fields,
                facts=facts,
            ),
            blocked=why.reason,
            blocked_word=why.word,
            blocked_message=why.message[:1024],
        )


def _may_change(model: Model) -> bool:
    """A URL without a checksum names whatever lies there; a repository moves by its revision alone."""
    url = model.spec.source.url
    return url is not None and url.sha256 is None


def _mark(model: Model, profile: Profile | None, files: Files) -> Hashable:
    """Differs whenever the price may."""
    return (
        (model.metadata.uid, model.metadata.generation),
        (profile.metadata.uid, profile.metadata.generation) if profile else (),
        (files.facts.source_hash, files.facts.digest),
        files.local_nodes,
    )


def _unsupported(part: Part) -> str:
    """What to do about a source that no reader here can see."""
    if part.source.image is not None:
        return (
            f"its {part.role} is an image, which is not supported yet: put the files on a claim"
            " (path.persistentVolumeClaim), or name a huggingFace or url source"
        )
    return f"its {part.role} must be fetched as its weights are, or all parts lie on one claim"
