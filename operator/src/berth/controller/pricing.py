"""What does a Model need in each way of running it, and with which command? (Pure.)"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from berth.api.meta import EnvVar, seconds_of
from berth.api.model import FactsStatus, FileFact, Model
from berth.api.model import Needs as NeedsStatus
from berth.api.profile import ProfileFields
from berth.api.runner import Mount
from berth.controller.parts import WEIGHTS, facts_of, parts_of
from berth.controller.priced import Priced
from berth.controller.resolve import settings_hash
from berth.controller.variants import Variant
from berth.estimator import Device, Estimate, Settings
from berth.facts import Facts
from berth.manifests.pod import MODELS_PATH
from berth.planner.state import Need
from berth.reasons import Reason
from berth.runtimes.base import Adapter, Launch, Runtime
from berth.runtimes.registry import runtime
from berth.units import Bytes

_HANG_S = 120.0
_MOST_EXPERT_STEPS = 64
PORT = 8080


@dataclass(frozen=True)
class PriceSettings:
    """The cluster's settings that a price depends on. ``images`` by ``RUNTIME/HARDWARE``."""

    images: Mapping[str, str]
    context_length: int = 4096


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
    model: Model, fields: ProfileFields, files: Files, settings: PriceSettings, *, profile: str
) -> Priced:
    """The price of a Model whose header is known. Raises Unpriceable."""
    _check(model, fields)
    engine = _runtime(fields)
    facts = _facts(files.facts)
    asked = fields
    if fields.context_length is None:
        context = _context(facts[WEIGHTS], fields, settings)
        fields = fields.model_copy(update={"context_length": context})
    bench = _Bench(model, fields, files, engine, facts, settings)
    offers = bench.offers()
    first = offers[0].estimate
    missing = _image_missing(offers, engine.name)
    return Priced(
        source_hash=files.facts.source_hash,
        settings_hash=settings_hash(model, asked, files.facts.digest),
        generation=model.metadata.generation,
        profile=profile,
        fields=fields,
        runtime=engine.name,
        context_length=first.per_request,
        parallel=first.parallel,
        facts=files.facts,
        shown={offer.hardware: _needs_status(offer.estimate) for offer in reversed(offers)},
        needs=tuple(offer.need for offer in offers if offer.variant.image),
        variants=tuple(offer.variant for offer in offers if offer.variant.image),
        files=files.files,
        mount=files.mount,
        local_nodes=files.local_nodes,
        blocked=Reason.UNSUPPORTED if missing else None,
        blocked_message=missing,
    )


def _check(model: Model, fields: ProfileFields) -> None:
    asked, most = fields.context_length, fields.max_context_length
    if asked is not None and most is not None and asked > most:
        raise Unpriceable(
            Reason.CONTEXT_TOO_LONG,
            f"model {model.metadata.name} asks for {asked} tokens of context;"
            f" its profile allows {most}",
        )
    if fields.command is not None or fields.pre_exec:
        raise Unpriceable(
            Reason.UNSUPPORTED, "command and preExec run code on a node and are not allowed here"
        )


def _runtime(fields: ProfileFields) -> Runtime:
    try:
        return runtime(fields.runtime)
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


def _context(facts: Facts, fields: ProfileFields, settings: PriceSettings) -> int:
    """Tokens of one request where nobody says: the cluster's default, or what there is of it."""
    trained = facts.context_length or settings.context_length
    return min(trained, settings.context_length, fields.max_context_length or trained)


def _image_missing(offers: Sequence["_Offer"], engine: str) -> str:
    """What to set when there is an image for no hardware at all; empty when there is one."""
    if any(offer.variant.image for offer in offers):
        return ""
    names = sorted({f"BERTH_IMAGE_{engine.upper()}_{o.hardware.upper()}" for o in offers})
    return f"no runner image is set: {' or '.join(names)}, or images in its profile"


@dataclass(frozen=True)
class _Offer:
    """One way to run, priced."""

    hardware: str
    variant: Variant
    estimate: Estimate
    need: Need


@dataclass(frozen=True)
class _Bench:
    """One Model being priced."""

    model: Model
    fields: ProfileFields
    files: Files
    engine: Runtime
    facts: Mapping[str, Facts]
    settings: PriceSettings

    def offers(self) -> list[_Offer]:
        """Best first: whole on its devices, with experts on the host, on the CPU."""
        # Which layers' experts stay on the host is worked out here, not by the runtime.
        plain = self.fields.model_copy(update={"host_experts": None})
        try:
            base = self.engine.settings(self.facts[WEIGHTS], plain)
            found = [self._offer("cuda", "cuda", base)]
            found += [
                self._offer("cuda", f"cuda n_cpu_moe={n}", replace(base, n_cpu_moe=n))
                for n in self._expert_steps(base)
            ]
            found.append(self._offer("cpu", "cpu", replace(base, n_gpu_layers=0)))
        except ValueError as err:
            raise Unpriceable(Reason.BAD_FLAGS, str(err)) from err
        refused = next((o.estimate.refusals for o in found if o.estimate.refusals), ())
        if refused:
            raise Unpriceable(Reason.UNSUPPORTED, "; ".join(refused)[:900])
        return found

    def _expert_steps(self, base: Settings) -> list[int]:
        """Numbers of layers whose experts stay on the host, fewest first; none for dense models."""
        facts, asked = self.facts[WEIGHTS], self.fields.host_experts
        if asked is not None and not asked.enabled:
            return []
        if not (facts.integer("expert_count") or 0) or base.cpu_moe or base.n_cpu_moe:
            return []
        layers = facts.layers or 0
        step = max(1, -(-layers // _MOST_EXPERT_STEPS))
        return sorted({*range(step, layers, step), layers} - {0})

    def _offer(self, hardware: str, name: str, settings: Settings) -> _Offer:
        devices = self._devices() if hardware == "cuda" else ()
        estimate = self.engine.estimate(
            self.facts[WEIGHTS],
            settings,
            devices=devices,
            projector=self.facts.get("projector"),
            adapters=[f for n, f in sorted(self.facts.items()) if n.startswith("adapter-")],
            draft=self.facts.get("draft"),
        )
        variant = Variant(
            name=name,
            image=self._image(hardware),
            command=tuple(self._command(settings)),
            env=tuple(self._env(settings)),
            port=PORT,
            host_file_pages=max(0, estimate.host.file - estimate.host.file_read_once),
            hang_timeout_s=seconds_of(self.fields.hang_timeout)
            if self.fields.hang_timeout
            else _HANG_S,
        )
        need = Need(
            host=Bytes(estimate.host.total),
            gpus=tuple(size for _, size in estimate.devices) if devices else (),
            sure=estimate.sure,
            text=estimate.sentence,
            variant=name,
        )
        return _Offer(hardware, variant, estimate, need)

    def _devices(self) -> tuple[Device, ...]:
        asked = self.fields.parallelism.tensor if self.fields.parallelism else 1
        return tuple(Device(name=f"GPU{index}") for index in range(asked))

    def _image(self, hardware: str) -> str:
        own = (self.fields.images or {}).get(hardware)
        return own or self.settings.images.get(f"{self.engine.name}/{hardware}", "")

    def _command(self, settings: Settings) -> list[str]:
        launch = Launch(
            model=self._first("weights") or MODELS_PATH,
            name=self.model.served_id,
            port=PORT,
            projector=self._first("projector"),
            adapters=tuple(self._adapters()),
            draft=self._first("draft"),
        )
        return self.engine.command(settings, launch, self.fields.args or ())

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

    def _env(self, settings: Settings) -> list[EnvVar]:
        own = {variable.name: variable.value for variable in self.fields.env or ()}
        merged = dict(self.engine.environment(settings)) | own
        return [EnvVar(name=name, value=value) for name, value in merged.items()]


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
