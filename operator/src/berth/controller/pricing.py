"""What does a Model need in each way of running it, and with which command? (Pure.)"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from berth.api.meta import seconds_of
from berth.api.model import FactsStatus, FileFact, Model
from berth.api.model import Needs as NeedsStatus
from berth.api.profile import ProfileFields
from berth.api.runner import Mount
from berth.controller.chain import Layer, Said, base_layers, layer_of, settle, told
from berth.controller.parts import WEIGHTS, facts_of, parts_of
from berth.controller.priced import Priced
from berth.controller.resolve import settings_hash
from berth.controller.variants import Variant
from berth.controller.warm import warm_files
from berth.estimator import Estimate
from berth.facts import Facts
from berth.manifests.pod import MODELS_PATH
from berth.manifests.sessions import SESSIONS_PATH
from berth.planner.state import Need
from berth.reasons import Reason
from berth.runtimes.base import Adapter, Finding, Job, Launch, Ranks, Runtime, Way
from berth.runtimes.checks import runs_own_code
from berth.runtimes.registry import BUILT_IN, registry
from berth.runtimes.template import field_values
from berth.units import Bytes, parse_quantity, show_bytes

_HANG_S = 120.0
PORT = 8080


@dataclass(frozen=True)
class PriceSettings:
    """The cluster's settings that a price depends on. ``images`` by ``RUNTIME/HARDWARE``."""

    images: Mapping[str, str]
    context_length: int = 4096
    runtimes: tuple[str, ...] = BUILT_IN
    """Those that are switched on."""


@dataclass(frozen=True)
class Files:
    """Which files a runner gets, and from where."""

    facts: FactsStatus
    files: tuple[FileFact, ...]
    mount: Mount | None = None
    local_nodes: frozenset[str] | None = None


class Unpriceable(Exception):  # noqa: N818
    """Why a Model has no price: told as its condition, never a size of 0."""

    def __init__(self, reason: Reason, message: str, *, word: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.word = word


def price(
    model: Model,
    fields: ProfileFields,
    files: Files,
    settings: PriceSettings,
    *,
    profile: str,
    layers: Sequence[Layer] = (),
) -> Priced:
    """The price of a Model whose header is known, under what its users set. Raises Unpriceable.

    ``layers``: the same by who set it, for who wants to be told the origins.
    """
    _check_context(model, fields.context_length, fields.max_context_length)
    engine = runtime_of(fields, settings)
    bench = _Bench(model, fields, files, engine, _facts(files.facts), settings)
    offers = bench.offers()
    first = offers[0].way.estimate
    _check_context(model, offers[0].way.context, fields.max_context_length)
    missing = _image_missing(offers, engine.traits.name)
    return Priced(
        source_hash=files.facts.source_hash,
        settings_hash=settings_hash(model, fields, files.facts.digest),
        generation=model.metadata.generation,
        profile=profile,
        fields=offers[0].fields,
        runtime=engine.traits.name,
        apis=tuple(sorted(engine.traits.apis)),
        has_prefix_cache=engine.traits.has_prefix_cache,
        context_length=first.per_request,
        parallel=first.parallel,
        facts=files.facts,
        shown={offer.hardware: _needs_status(offer.way.estimate) for offer in reversed(offers)},
        needs=tuple(offer.need for offer in offers if offer.variant.image),
        variants=tuple(offer.variant for offer in offers if offer.variant.image),
        files=files.files,
        mount=files.mount,
        local_nodes=files.local_nodes,
        runs_code=tuple(runs_own_code(engine.traits, fields)),
        device_names=tuple(sorted(engine.traits.requires)),
        warnings=bench.warnings(),
        origins=bench.origins(layers) if layers else {},
        blocked=Reason.UNSUPPORTED if missing else None,
        blocked_message=missing,
    )


def _check_context(model: Model, asked: int | None, most: int | None) -> None:
    if asked is not None and most is not None and asked > most:
        raise Unpriceable(
            Reason.CONTEXT_TOO_LONG,
            f"model {model.metadata.name} asks for {asked} tokens of context;"
            f" its profile allows {most}",
        )


def runtime_of(fields: ProfileFields, settings: PriceSettings) -> Runtime:
    """The runtime that a profile names. Raises Unpriceable."""
    try:
        return registry(settings.runtimes).get(fields.runtime)
    except KeyError as err:
        raise Unpriceable(Reason.UNSUPPORTED, str(err.args[0])) from err


def _facts(status: FactsStatus) -> dict[str, Facts]:
    try:
        facts = facts_of(status)
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise Unpriceable(
            Reason.INVALID_HEADER, f"the stored facts of its header are not readable: {err}"
        ) from err
    missing = facts[WEIGHTS].missing
    if missing:
        raise Unpriceable(
            Reason.NEEDS_UNKNOWN, f"its header lacks {', '.join(missing)}: its size is not known"
        )
    return facts


def _image_missing(offers: Sequence["_Offer"], engine: str) -> str:
    """What to set when there is an image for no hardware at all; empty when there is one."""
    if any(offer.variant.image for offer in offers):
        return ""
    names = " or ".join(sorted({f"{engine}/{offer.hardware}" for offer in offers}))
    return f"no runner image is set for {names}: name one in BERTH_RUNNER_IMAGES, or images in its profile"


@dataclass(frozen=True)
class _Offer:
    """One way to run, priced."""

    hardware: str
    way: Way
    variant: Variant
    need: Need
    fields: ProfileFields


@dataclass(frozen=True)
class _Bench:
    """One Model being priced. ``fields`` are what users set."""

    model: Model
    fields: ProfileFields
    files: Files
    engine: Runtime
    facts: Mapping[str, Facts]
    settings: PriceSettings

    def offers(self) -> list[_Offer]:
        """Every way on every hardware of the runtime, best first."""
        try:
            self._refuse()
            found = [self._offer(job, way) for job in self._jobs for way in self.engine.ways(job)]
        except ValueError as err:
            raise Unpriceable(Reason.BAD_FLAGS, str(err)) from err
        refused = next((o.way.estimate.refusals for o in found if o.way.estimate.refusals), ())
        if refused or not found:
            text = "; ".join(refused) or f"{self.engine.traits.name} has no way to run it"
            raise Unpriceable(Reason.UNSUPPORTED, text[:900])
        return found

    def origins(self, layers: Sequence[Layer]) -> dict[str, tuple[Said, ...]]:
        """By hardware, who said each setting."""
        traits, context = self.engine.traits, self._context()
        return {
            hardware: tuple(
                told(settle([*base_layers(traits, hardware, context), *layers]), traits)
            )
            for hardware in traits.hardware
        }

    def warnings(self) -> tuple[str, ...]:
        """What does not stop a launch and should be known."""
        return tuple(finding.text for finding in self._findings)

    @cached_property
    def _jobs(self) -> list[Job]:
        return [self._job(hardware) for hardware in self.engine.traits.hardware]

    @cached_property
    def _findings(self) -> Sequence[Finding]:
        return self.engine.check(self._jobs[0])

    def _refuse(self) -> None:
        errors = [f.text for f in self._findings if f.level == "error"]
        if errors:
            raise Unpriceable(Reason.BAD_FLAGS, "; ".join(errors)[:900])

    def _job(self, hardware: str) -> Job:
        facts = self.facts
        layers = base_layers(self.engine.traits, hardware, self._context())
        asked = layer_of("asked", self.fields)
        fields = settle([*layers, asked]).fields
        return Job(
            facts=facts[WEIGHTS],
            fields=fields,
            hardware=hardware,
            name=self.model.served_id,
            asked=frozenset(asked.values),
            ranks=ranks_of(fields),
            projector=facts.get("projector"),
            adapters=tuple(f for n, f in sorted(facts.items()) if n.startswith("adapter-")),
            draft=facts.get("draft"),
        )

    def _context(self) -> int:
        """Tokens of one request where nobody says: the cluster's default, or what there is of it."""
        most = self.settings.context_length
        trained = self.facts[WEIGHTS].context_length or most
        return min(trained, most, self.fields.max_context_length or trained)

    def _offer(self, job: Job, way: Way) -> _Offer:
        estimate, timeout = way.estimate, self.fields.hang_timeout
        mapped = max(0, estimate.host.file - estimate.host.file_read_once)
        warm = warm_bytes(job.fields, self.files.files, are_weights_mapped=mapped > 0)
        variant = Variant(
            name=way.name,
            image=self._image(job.hardware),
            runtime=self.engine,
            settings=way.settings,
            launch=self._launch(job),
            hardware=job.hardware,
            hosts=way.hosts,
            env=self.engine.environment(way.settings),
            port=PORT,
            host_file_pages=mapped + warm,
            hang_timeout_s=seconds_of(timeout) if timeout else _HANG_S,
        )
        # An argument list that cannot be made is found now, not when victims have gone.
        cards = tuple(size for _, size in estimate.devices)
        for rank in range(min(way.hosts, 2)):
            variant.words(rank, way.hosts, cards)
        host, gpus = _at_peak(job, way)
        need = Need(
            host=Bytes(host + warm),
            gpus=gpus,
            sure=estimate.sure,
            text=estimate.sentence + (f" and {show_bytes(Bytes(warm))} kept warm" if warm else ""),
            file_pages=Bytes(variant.host_file_pages),
            variant=way.name,
            hosts=way.hosts,
        )
        return _Offer(job.hardware, way, variant, need, job.fields)

    def _image(self, hardware: str) -> str:
        """The profile's, else the cluster's, else the runtime's own."""
        traits = self.engine.traits
        own = (self.fields.images or {}).get(hardware)
        known = self.settings.images.get(f"{traits.name}/{hardware}")
        return own or known or traits.images.get(hardware, "")

    def _launch(self, job: Job) -> Launch:
        return Launch(
            model=self._weights(job.facts),
            name=self.model.served_id,
            port=PORT,
            projector=self._first("projector"),
            adapters=tuple(self._adapters()),
            draft=self._first("draft"),
            revision=self.files.facts.revision or "",
            template=tuple(job.fields.command or ()),
            args=tuple(job.fields.args or ()),
            values=field_values(job.fields),
            sessions=SESSIONS_PATH if _saves_sessions(job.fields) else None,
        )

    def _weights(self, facts: Facts) -> str:
        """The first file of a GGUF; the folder of all the files of anything else."""
        first = self._first("weights")
        if first is None:
            return MODELS_PATH
        return first if facts.format == "gguf" else str(PurePosixPath(first).parent)

    def _first(self, role: str) -> str | None:
        """The first file by name: of a split model, its first shard."""
        names = sorted(file.name for file in self.files.files if file.role == role)
        return f"{MODELS_PATH}/{names[0]}" if names else None

    def _adapters(self) -> list[Adapter]:
        found = []
        for part in parts_of(self.model):
            if part.role != "adapter":
                continue
            # The facts name a file by its part; `files` names it as it is mounted, in the same order.
            both = zip(self.files.facts.files, self.files.files, strict=True)
            names = sorted(f.name for said, f in both if said.name.startswith(f"{part.name}/"))
            if names:
                found.append(Adapter(f"{MODELS_PATH}/{names[0]}", float(part.scale)))
        return found


def _at_peak(job: Job, way: Way) -> tuple[Bytes, tuple[Bytes, ...]]:
    """What is claimed: the estimate, or the profile's ``memory.peak`` where that is more. The peak is of one
    node's devices together; of its host where there are none."""
    estimate, said = way.estimate, job.fields.memory.peak if job.fields.memory else None
    peak = parse_quantity(said) if said else 0
    host = estimate.host.total if way.devices else max(estimate.host.total, peak)
    each = -(-peak // way.devices) if way.devices else 0
    gpus = tuple(Bytes(max(size, each)) for _, size in estimate.devices) if way.devices else ()
    return Bytes(host), gpus


def ranks_of(fields: ProfileFields) -> Ranks:
    """How a profile spreads a model."""
    asked = fields.parallelism
    if asked is None:
        return Ranks()
    return Ranks(
        tensor=asked.tensor,
        pipeline=asked.pipeline,
        data=asked.data,
        expert=asked.expert,
        hosts=asked.nodes,
    )


def _needs_status(estimate: Estimate) -> NeedsStatus:
    kinds = estimate.kinds
    return NeedsStatus(
        text=estimate.sentence[:1024],
        gpu=sum(size for _, size in estimate.devices),
        host=estimate.host.total,
        weights=kinds.weights,
        kv_cache=kinds.kv_cache,
        state=kinds.state,
        buffers=kinds.compute + kinds.output,
        projector=kinds.projector,
        context_length=estimate.per_request,
        sure=estimate.sure,
        notes=[note[:1024] for note in estimate.notes[:16]],
    )


def _saves_sessions(fields: ProfileFields) -> bool:
    return bool(fields.drain and fields.drain.save_sessions)


def warm_bytes(
    fields: ProfileFields, files: Iterable[FileFact], *, are_weights_mapped: bool
) -> int:
    """Bytes of page cache that ``keepWarm`` takes beside what the engine maps anyway."""
    return sum(
        file.size
        for file in warm_files(fields, files)
        if not (file.role == WEIGHTS and are_weights_mapped)
    )
