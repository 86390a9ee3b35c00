"""What does a model need with these settings, by device and by kind?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from berth.estimator import architectures as arch
from berth.estimator.cache import CACHE_KINDS, CacheBytes, cache_kind, per_device
from berth.estimator.compute import compute_buffers
from berth.estimator.effective import CELL_STEP, UNFUSED, Effective, effective
from berth.estimator.extras import (
    LIBRARIES,
    checkpoint_bytes,
    driver_bytes,
    engine_bytes,
    prompt_cache,
)
from berth.estimator.graph.context import NoGraph
from berth.estimator.graph.layout import (
    HOST_ALIGNMENT,
    MOST_SLOTS,
    attention_fuses,
    is_whole,
    known,
)
from berth.estimator.placing import Placing, place
from berth.estimator.projector import projector_bytes, unmeasured
from berth.estimator.result import Buffers, Estimate, HostNeeds, Kinds
from berth.estimator.same import first_of
from berth.estimator.settings import CPU, CPU_REPACK, Device, Host, Settings
from berth.estimator.shape import Shape, shape_of
from berth.estimator.weights import mapped_twice, place_weights, weight_bytes
from berth.facts import Facts
from berth.facts.ggml import QUANTISED
from berth.units import Bytes, MiB

MAPPED_MODES = frozenset({"auto", "mmap", "mmap+mlock", "mlock"})
"""Load modes in which host weights are pages of the file."""


@dataclass(frozen=True, slots=True)
class _Priced:
    """One model's buffers, before they are put together with others'."""

    shape: Shape
    settings: Settings
    sizes: Effective
    placing: Placing
    buffers: dict[str, Buffers]
    cache: dict[str, CacheBytes]
    window_cache: int
    twice: int
    """Bytes of the host's weights that are the same pages where the file is mapped."""
    exact: bool


def estimate(
    facts: Facts,
    settings: Settings,
    *,
    devices: Sequence[Device] = (),
    host: Host | None = None,
    projector: Facts | None = None,
    adapters: Sequence[Facts] = (),
    draft: Facts | None = None,
) -> Estimate:
    """The bytes that llama-server takes for a model with these settings on these devices.

    Raises ValueError on settings that mean nothing (an unknown cache type, an override without a buffer).
    """
    machine = host or Host()
    main = _price(facts, settings, devices, machine)
    rest = (
        _price(draft, _draft_settings(settings, main), devices, machine)
        if draft is not None
        else None
    )
    buffers = dict(main.buffers)
    for owner, one in rest.buffers.items() if rest else ():
        buffers[owner] = buffers.get(owner, Buffers()) + one
    files = _Files.of(projector, adapters, main)
    return _put_together(facts, main, rest, buffers, files)


@dataclass(frozen=True, slots=True)
class _Same:
    """Facts as a key: the first that said the same, by identity."""

    facts: Facts

    @staticmethod
    def of(facts: Facts) -> "_Same":
        """The key of facts."""
        return _Same(first_of(facts))

    def __hash__(self) -> int:
        return id(self.facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.facts is self.facts


def _price(facts: Facts, settings: Settings, devices: Sequence[Device], host: Host) -> _Priced:
    if len(devices) == 1:
        # Alone, a device gets its share whatever its size; leaving the size out makes nodes alike.
        devices = (replace(devices[0], memory=0),)
    return _priced(_Same.of(facts), settings, tuple(devices), host)


@lru_cache(maxsize=4096)
def _priced(same: _Same, settings: Settings, devices: tuple[Device, ...], host: Host) -> _Priced:
    """One model's buffers; kept, because the planner asks for the same ones again and again."""
    facts = same.facts
    shape = shape_of(facts)
    _check_kinds(settings)
    placing = place(shape.blocks, settings, devices)
    settings = _with_flash(same, shape, settings, placing)
    sizes = effective(shape, settings)
    sized = place_weights(facts, shape, placing, settings, host)
    weights = weight_bytes(sized, placing)
    slots = settings.draft_max if settings.spec_types else 0
    cache = per_device(
        shape, settings, sizes, lambda layer: placing.cache(layer.number), placing.alignment, slots
    )
    compute = compute_buffers(facts, shape, settings, sizes, placing, sized)
    buffers = {}
    for owner in _owners(placing, weights):
        held = cache.get(owner, CacheBytes(0, 0))
        output = _output(shape, settings, sizes) if owner == CPU else 0
        buffers[owner] = Buffers(
            weights.get(owner, 0), held.kv + held.state, compute.by_owner.get(owner, 0), output
        )
    window = _window_cache(shape, settings, sizes) if shape.window else 0
    twice = mapped_twice(sized)
    return _Priced(shape, settings, sizes, placing, buffers, cache, window, twice, compute.exact)


def _window_cache(shape: Shape, settings: Settings, sizes: Effective) -> int:
    """The cache of all sliding layers, in bytes."""
    held = per_device(
        shape, settings, sizes, lambda layer: str(layer.window), lambda _: HOST_ALIGNMENT
    )
    return held.get(str(True), CacheBytes(0, 0)).kv


def _check_kinds(settings: Settings) -> None:
    for kind in (settings.cache_type_k, settings.cache_type_v):
        if kind.upper() not in CACHE_KINDS:
            raise ValueError(f"{kind!r} is no cache type")


def _owners(placing: Placing, weights: Mapping[str, int]) -> list[str]:
    """CPU first, then its repacked copies, then the devices in their order."""
    names = [CPU] + ([CPU_REPACK] if weights.get(CPU_REPACK) else [])
    return (
        names
        + [device.name for device in placing.devices]
        + [
            owner
            for owner in weights
            if owner not in {CPU, CPU_REPACK, *(device.name for device in placing.devices)}
        ]
    )


def _output(shape: Shape, settings: Settings, sizes: Effective) -> int:
    """Logits (and embeddings) that the host keeps for the slots."""
    embeds = settings.embeddings or shape.architecture in arch.ENCODER_DECODERS
    width = shape.vocabulary + (shape.embedding if embeds else 0)
    return 4 * sizes.slots * width


def _with_flash(same: _Same, shape: Shape, settings: Settings, placing: Placing) -> Settings:
    """Flash attention as ``auto`` turns out: off for the whole model where one layer cannot have it in its place."""
    if settings.flash_attn != "auto" or not placing.devices or not known(shape.architecture):
        return settings
    if is_whole(placing):
        return settings
    # Neither the length of the context nor that of the batch decides where a layer attends.
    asked = replace(settings, context=CELL_STEP, ubatch=CELL_STEP, batch=CELL_STEP, swa_full=False)
    return settings if _fuses(same, asked, placing) else replace(settings, flash_attn=UNFUSED)


@lru_cache(maxsize=1024)
def _fuses(same: _Same, settings: Settings, placing: Placing) -> bool:
    shape = shape_of(same.facts)
    try:
        return attention_fuses(same.facts, shape, settings, effective(shape, settings), placing)
    except NoGraph:
        return True


def _draft_settings(settings: Settings, main: _Priced) -> Settings:
    """A draft model runs with the same context and slots, its own cache types and layers."""
    return replace(
        settings,
        context=main.sizes.context,
        cache_type_k=settings.cache_type_k_draft,
        cache_type_v=settings.cache_type_v_draft,
        n_gpu_layers=settings.n_gpu_layers_draft,
        override_tensor=(),
        n_cpu_moe=0,
        cpu_moe=False,
        n_cpu_ffn=0,
        spec_types=(),
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """Bytes of what is loaded beside the model, and whether a device has them."""

    projector: int
    adapters: int
    on_device: bool
    notes: tuple[str, ...] = ()
    """Why the projector's bytes are a bound."""

    @staticmethod
    def of(projector: Facts | None, adapters: Sequence[Facts], main: _Priced) -> "_Files":
        """The projector (with its own compute buffer) and the adapters, by the model's settings."""
        flash = main.sizes.flash
        image = projector_bytes(projector, flash=flash) if projector is not None else 0
        loras = sum(
            -(-group.nbytes // 32) * 32 * group.count for one in adapters for group in one.tensors
        )
        why = unmeasured(projector) if projector is not None else ""
        on_device = bool(main.placing.devices) and main.settings.mmproj_offload
        return _Files(image, loras, on_device, (why,) if why else ())


def _put_together(
    facts: Facts, main: _Priced, rest: _Priced | None, buffers: dict[str, Buffers], files: _Files
) -> Estimate:
    priced = [main] + ([rest] if rest else [])
    kinds = _kinds(main, rest, files)
    cache = sum(one.kv + one.state for one in main.cache.values())
    outside = engine_bytes(facts) + prompt_cache(main.settings, cache, main.sizes)
    outside += checkpoint_bytes(main.shape, main.settings, main.sizes, main.window_cache)
    host = _host(main, buffers, files, outside)
    devices = tuple(_device_needs(main, buffers, files))
    driver = sum(nbytes for _, nbytes in devices) - _on_devices(main, buffers, files)
    notes, sure = _notes(facts, priced)
    slots = main.sizes.slots
    return Estimate(
        buffers=buffers,
        kinds=replace(kinds, outside=outside + driver + LIBRARIES),
        host=host,
        devices=devices,
        tokens=main.sizes.context,
        per_request=main.sizes.cells,
        parallel=slots,
        sure=sure and not files.notes,
        notes=(*notes, *files.notes),
        refusals=tuple(_refusals(main)),
    )


def _kinds(main: _Priced, rest: _Priced | None, files: _Files) -> Kinds:
    own = list(main.buffers.values())
    return Kinds(
        weights=sum(one.model for one in own),
        kv_cache=sum(one.kv for one in main.cache.values()),
        state=sum(one.state for one in main.cache.values()),
        compute=sum(one.compute for one in own),
        output=sum(one.output for one in own),
        projector=files.projector,
        draft=sum(one.total for one in rest.buffers.values()) if rest else 0,
        adapters=files.adapters,
    )


def _host(main: _Priced, buffers: Mapping[str, Buffers], files: _Files, outside: int) -> HostNeeds:
    plain, repacked = buffers[CPU], buffers.get(CPU_REPACK, Buffers())
    mapped = main.settings.load_mode in MAPPED_MODES
    extra = 0 if files.on_device else files.projector + files.adapters
    anonymous = plain.context + plain.compute + plain.output + repacked.total + extra + outside
    elsewhere = sum(one.model for owner, one in buffers.items() if owner != CPU)
    return HostNeeds(
        anonymous=anonymous + (0 if mapped else plain.model),
        file=LIBRARIES + (plain.model - main.twice if mapped else 0),
        file_read_once=elsewhere if mapped else 0,
    )


def _on_devices(main: _Priced, buffers: Mapping[str, Buffers], files: _Files) -> int:
    held = sum(buffers[device.name].total for device in main.placing.devices)
    return held + (files.projector + files.adapters if files.on_device else 0)


def _device_needs(
    main: _Priced, buffers: Mapping[str, Buffers], files: _Files
) -> list[tuple[str, Bytes]]:
    needs = []
    for number, device in enumerate(main.placing.devices):
        held = buffers[device.name].total
        if files.on_device and number == 0:
            held += files.projector + files.adapters
        held += main.settings.moe_cache_mib * MiB // len(main.placing.devices)
        needs.append((device.name, Bytes(held + driver_bytes(held, rules=device.rules))))
    return needs


def _notes(facts: Facts, priced: Sequence[_Priced]) -> tuple[list[str], bool]:
    """Why the numbers may be off, in full sentences; and whether they are sure."""
    notes, sure = list(facts.warnings), not facts.warnings
    if facts.missing:
        notes.append(
            f"the header has no {', '.join(facts.missing)}: what depends on it is not known"
        )
        sure = False
    for one in priced:
        name = one.shape.architecture
        if name not in arch.FOLLOWED:
            notes.append(
                f"the architecture {name!r} is not known here: full attention in every layer is assumed"
            )
            sure = False
        if name in arch.INDEXED:
            notes.append(
                f"the sparse attention of {name!r} has caches that are not counted exactly"
            )
    trained = priced[0].shape.trained
    if trained and priced[0].sizes.cells > -(-trained // 256) * 256:
        notes.append(f"{priced[0].sizes.cells} tokens a request are above the trained {trained}")
    return notes, sure


def _refusals(main: _Priced) -> list[str]:
    """Settings that the engine refuses or dies of (notes on memory, section 3.10)."""
    settings, sizes = main.settings, main.sizes
    kinds = [cache_kind(kind) for kind in (settings.cache_type_k, settings.cache_type_v)]
    found = []
    if sizes.slots > MOST_SLOTS:
        found.append(f"{sizes.slots} slots are more than the {MOST_SLOTS} that there can be")
    if main.shape.mla and kinds[0] != kinds[1]:
        found.append(
            "this model keeps keys and values in one cache, so both cache types must be equal"
        )
    if not sizes.flash and kinds[1] in QUANTISED:
        found.append("a quantised V cache needs flash attention")
    if main.shape.encoder and not sizes.flash and sizes.ubatch % sizes.slots:
        found.append("an encoder without flash attention needs a micro-batch that its slots divide")
    return found
