"""What do engines take that are given a budget on each card: vLLM, SGLang and their like?

Everything that decides a byte is a setting that is passed, so that the price does not depend on the card.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from berth.api.meta import seconds_of
from berth.estimator import Buffers, Estimate, HostNeeds, Kinds
from berth.estimator.vllm import (
    HOST_BYTES,
    HOST_RANK_BYTES,
    VllmEstimate,
    VllmSettings,
    estimate_vllm,
)
from berth.runtimes.base import Job, Ranks, Traits, Way
from berth.runtimes.flags import FlagMap, read_flags, write_flags
from berth.runtimes.template import priced_words

DEFAULT_BATCH = 2048
"""Tokens of one step where a profile says none."""
NOTE = "weights and cache follow the engine's rules; what it computes in is fitted to public logs and rounded up"
Reader = Callable[[VllmSettings, Any], VllmSettings]
"""Takes a literal value over into the settings. Raises ValueError."""
COUNT_READERS: Mapping[str, Reader] = {
    "contextLength": lambda sizes, value: replace(sizes, context=int(value)),
    "parallel": lambda sizes, value: replace(sizes, sequences=int(value)),
    "batchSize": lambda sizes, value: replace(sizes, batched_tokens=int(value)),
}
"""Of engines that write these as plain numbers."""


@dataclass(frozen=True, slots=True)
class CardSettings:
    """What was priced. ``kv_type`` and ``dtype`` are the engine's own words."""

    sizes: VllmSettings
    found: VllmEstimate
    ranks: Ranks
    hardware: str
    kv_type: str = "auto"
    dtype: str = "bfloat16"
    literal: frozenset[str] = frozenset()
    """Keys that literal flags have set: they are passed as they were written."""
    drain_s: int = 300

    @property
    def local_devices(self) -> int:
        """Cards of one node."""
        ranks = self.ranks
        return ranks.tensor * ranks.pipeline * ranks.data // ranks.hosts


def card_settings(
    traits: Traits, job: Job, readers: Mapping[str, Reader], kv_types: Mapping[str, str]
) -> CardSettings:
    """The settings of a job with its literal flags taken over. Raises ValueError."""
    fields, ranks = job.fields, job.ranks
    parallel = fields.parallel or 1
    kv_type = _kv_type(traits, job, kv_types)
    sizes = VllmSettings(
        context=fields.context_length or job.facts.context_length or 0,
        parallel=parallel,
        tensor_parallel=ranks.tensor,
        pipeline_parallel=ranks.pipeline,
        batched_tokens=max(fields.batch_size or DEFAULT_BATCH, parallel),
        sequences=parallel,
        kv_bytes=1 if "fp8" in kv_type else 0,
        graphs=job.hardware != "cpu",
    )
    typed = [one for one in read_flags(traits.flags, priced_words(fields)) if one.key in readers]
    for one in typed:
        try:
            sizes = readers[one.key or ""](sizes, one.value)
        except ValueError as err:
            raise ValueError(f"{' '.join(one.words)}: {err}") from err
    sizes = replace(sizes, sequences=max(sizes.sequences, sizes.parallel))
    keys = frozenset(one.key for one in typed if one.key)
    found = estimate_vllm(job.facts, sizes, card=0)
    return CardSettings(
        sizes, found, ranks, job.hardware, kv_type, literal=keys, drain_s=_drain_s(job)
    )


def _kv_type(traits: Traits, job: Job, kv_types: Mapping[str, str]) -> str:
    """The cache's type; K and V have one, and unless somebody says so it is not quantised (R10)."""
    asked = job.fields.kv_cache_type
    if asked is None:
        return "auto"
    if asked.k != asked.v:
        raise ValueError(f"{traits.name} has one type for K and V, not {asked.k} and {asked.v}")
    if asked.k not in kv_types:
        raise ValueError(f"kvCacheType {asked.k}: {traits.name} has {', '.join(sorted(kv_types))}")
    return kv_types[asked.k]


def _drain_s(job: Job) -> int:
    return int(seconds_of(job.fields.drain.timeout)) if job.fields.drain else 300


def card_way(job: Job, settings: CardSettings) -> Way:
    """The settings with their price, on the cards of one node or on its CPUs."""
    found, count = settings.found, settings.local_devices
    compute = found.activation + found.non_torch + found.graphs
    one = Buffers(found.weights, found.kv_cache, compute)
    host = HOST_BYTES + HOST_RANK_BYTES * (count - 1)
    on_cpu = job.hardware == "cpu"
    if on_cpu:
        host += count * (found.weights + found.kv_cache + found.activation)
    devices = () if on_cpu else tuple((f"GPU{n}", found.total) for n in range(count))
    estimate = Estimate(
        buffers={f"GPU{n}": one for n in range(count)} if not on_cpu else {"CPU": one},
        kinds=_kinds(found, count, host=0 if on_cpu else host),
        host=HostNeeds(anonymous=host),
        devices=devices,
        tokens=found.tokens,
        per_request=settings.sizes.context,
        parallel=settings.sizes.parallel,
        sure=False,
        notes=(NOTE, *job.facts.warnings),
    )
    return Way(
        job.hardware, settings, estimate, settings.sizes.context, len(devices), job.ranks.hosts
    )


def priced_flags(flags: FlagMap, settings: CardSettings, values: Mapping[str, Any]) -> list[str]:
    """Flags of what was priced; a key that a literal flag has set is passed as it was written there."""
    kept = {key: value for key, value in values.items() if key not in settings.literal}
    return write_flags(flags, kept)


def _kinds(found: VllmEstimate, count: int, *, host: int) -> Kinds:
    return Kinds(
        weights=found.weights * count,
        kv_cache=found.kv_cache * count,
        compute=(found.activation + found.graphs) * count,
        outside=found.non_torch * count + host,
    )


def share(size: int, cards: tuple[int, ...]) -> float | None:
    """``size`` as a share of the smallest card, rounded up at the fourth place, at most 1; None without cards."""
    if not cards:
        return None
    return min(-(-size * 10_000 // min(cards)) / 10_000, 1.0)
