"""What does vLLM (or SGLang) take on each card for a safetensors model?

Both take a budget rather than what they need, so the planner's bytes become ``--kv-cache-memory-bytes``,
``--gpu-memory-utilization`` or ``--mem-fraction-static``, never a default. Rules read from vLLM 0.33 and held
against public start-up logs (notes on memory, section 5): weights and cache follow the engine, the rest is
fitted and rounded up.
"""

import math
from dataclasses import dataclass

from berth.facts import MAX_BLOCKS, Facts, TensorGroup
from berth.units import Bytes, GiB

BLOCK = 16
"""Tokens in one block of the cache."""
VOCABULARY_STEP = 64
SAMPLER_BYTES = 36
"""Bytes that the sampler's warm-up takes for each sequence and token of the vocabulary."""
NON_TORCH_ALONE, NON_TORCH_TOGETHER = int(0.3 * GiB), 2 * GiB
GRAPHS_BASE, GRAPHS_SHARE = GiB // 2, 0.005
"""CUDA graphs: 0.2 to 0.7 GiB were logged for 1 to 8 B parameters, 4 GiB for 400 B on four cards."""
WHOLE = (
    "norm",
    "router",
    "q_a_proj",
    "kv_a_proj",
    "mlp.gate.",
    "block_sparse_moe.gate.",
    "rotary",
    "_scale",
)
"""Tensors that every card holds whole."""
HOST_BYTES, HOST_RANK_BYTES = 4 * GiB, GiB
"""Host memory of the engine's processes beside the weights that pass through it (logs: 3 to 5 GiB), and for
each further rank."""
KV_NAMES = ("k_proj", "v_proj")
TABLES = ("embed_tokens", "lm_head", "wte")


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """What decides vLLM's bytes. 0 means the engine's own default.

    ``parallel`` is how many requests of ``context`` tokens must have room at once.
    """

    context: int = 0
    parallel: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    batched_tokens: int = 0
    sequences: int = 0
    kv_bytes: int = 0
    """Bytes of one element of the cache: 1 for fp8; 0 is the model's own."""
    block: int = BLOCK
    graphs: bool = True

    @property
    def ranks(self) -> int:
        """Cards of one copy."""
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True)
class VllmEstimate:
    """Bytes on each card."""

    weights: int
    kv_cache: int
    activation: int
    non_torch: int
    graphs: int
    tokens: int
    """Tokens that the cache holds."""
    bytes_per_token: int
    """Of the cache on one card, with all layers attending fully."""

    @property
    def total(self) -> Bytes:
        """What the card must have for it."""
        return Bytes(self.weights + self.kv_cache + self.activation + self.non_torch + self.graphs)

    def utilization(self, card: int) -> float:
        """``--gpu-memory-utilization`` for a card of ``card`` bytes, rounded up: it is a share of the whole card."""
        return math.ceil(self.total / card * 10_000) / 10_000

    def static_fraction(self, card: int) -> float:
        """SGLang's ``--mem-fraction-static``: the share of weights and cache, without what is computed in."""
        return math.ceil((self.weights + self.kv_cache) / card * 10_000) / 10_000


def estimate_vllm(facts: Facts, settings: VllmSettings, *, card: int) -> VllmEstimate:
    """What vLLM takes on each of ``tensor_parallel`` cards of ``card`` bytes."""
    context = settings.context or facts.context_length or 0
    batched, sequences = _defaults(settings, card)
    cache = _Cache.of(facts, settings, batched)
    blocks = cache.blocks(context) * settings.parallel
    return VllmEstimate(
        weights=_weights(facts, settings) + _rotary(facts),
        kv_cache=_staged(blocks * cache.block_bytes, facts, settings),
        activation=_activation(facts, settings, batched, sequences),
        non_torch=NON_TORCH_TOGETHER if settings.ranks > 1 else NON_TORCH_ALONE,
        graphs=int(GRAPHS_BASE + facts.weight_bytes * GRAPHS_SHARE / settings.ranks)
        if settings.graphs
        else 0,
        tokens=settings.parallel * context,
        bytes_per_token=cache.page * cache.layers // settings.block,
    )


def tokens_in(facts: Facts, settings: VllmSettings, budget: int, *, card: int) -> int:
    """Tokens that a cache of ``budget`` bytes holds, as vLLM logs it (``GPU KV cache size``)."""
    context = settings.context or facts.context_length or 0
    cache = _Cache.of(facts, settings, _defaults(settings, card)[0])
    each = cache.blocks(context)
    return int(budget // cache.block_bytes / each * context) if each else 0


def _defaults(settings: VllmSettings, card: int) -> tuple[int, int]:
    """Batched tokens and sequences of the API server, by the card's size."""
    batched, sequences = (
        (16384, 1024) if card >= 160 * GiB else (8192, 1024) if card >= 70 * GiB else (2048, 256)
    )
    return settings.batched_tokens or batched, settings.sequences or sequences


def _element(facts: Facts) -> int:
    """Bytes of one element in the model's own type."""
    return 4 if str(facts.hparams.get("dtype", "")).endswith("32") else 2


@dataclass(frozen=True, slots=True)
class _Cache:
    """The pool of blocks: layers in groups of one size, all drawing blocks of ``block_bytes`` from it."""

    page: int
    layers: int
    group: int
    counts: tuple[tuple[str, int], ...]
    window: int
    block: int
    batched: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        return self.page * self.group

    def blocks(self, context: int) -> int:
        """Blocks that one request of ``context`` tokens takes."""
        total = 0
        for kind, count in self.counts:
            groups = -(-count // self.group)
            total += groups * self._each(kind, context)
        return total

    def _each(self, kind: str, context: int) -> int:
        if kind == "state":
            return 1
        if kind == "sliding" and self.window:
            kept = min(self.window - 1 + self.batched, context)
            return -(-kept // self.block) + 1
        return -(-context // self.block)

    @staticmethod
    def of(facts: Facts, settings: VllmSettings, batched: int) -> "_Cache":
        """The pool of a model on one card."""
        counts = _kinds(facts)
        sizes = [count for _, count in counts] or [1]
        smallest, largest = min(sizes), max(sizes)
        group = largest if largest < 1.5 * smallest else smallest
        return _Cache(
            page=_page(facts, settings),
            layers=sum(sizes),
            group=group,
            counts=counts,
            window=facts.integer("attention.sliding_window") or 0,
            block=settings.block,
            batched=batched,
        )


def _kinds(facts: Facts) -> tuple[tuple[str, int], ...]:
    """How many layers of each kind: ``full``, ``sliding``, ``state``."""
    said = facts.hparams.get("layer_kinds")
    count = min(max(facts.layers or 0, 0), MAX_BLOCKS)
    interval = facts.integer("full_attention_interval") or 0
    if isinstance(said, tuple):
        kinds = [str(kind) for kind in said[:count]]
    elif interval > 1:
        kinds = ["full" if (number + 1) % interval == 0 else "state" for number in range(count)]
    else:
        kinds = [("sliding" if facts.integer("attention.sliding_window") else "full")] * count
    return tuple(
        (kind, kinds.count(kind)) for kind in ("full", "sliding", "state") if kind in kinds
    )


def _page(facts: Facts, settings: VllmSettings) -> int:
    """Bytes of one layer's block on one card: MLA is whole on each, heads are shared out (at least one each)."""
    element = settings.kv_bytes or _element(facts)
    low = facts.integer("attention.kv_lora_rank") or 0
    if low:
        return settings.block * (low + (facts.integer("rope.dimension_count") or 0)) * element
    heads = facts.integer("attention.head_count") or 1
    kv_heads = facts.integer("attention.head_count_kv") or heads
    width = (
        facts.integer("attention.key_length") or (facts.integer("embedding_length") or 0) // heads
    )
    return settings.block * max(1, kv_heads // settings.tensor_parallel) * 2 * width * element


def _weights(facts: Facts, settings: VllmSettings) -> int:
    """Of the heaviest stage: its share of the layers, and each table once, whichever stage holds it."""
    ranks = settings.tensor_parallel
    sizes = [(g, _rank_bytes(facts, g, ranks) * g.count) for g in facts.tensors]
    tables = sum(size for g, size in sizes if any(table in g.name for table in TABLES))
    return tables + _staged(sum(size for _, size in sizes) - tables, facts, settings)


def _staged(size: int, facts: Facts, settings: VllmSettings) -> int:
    """Of all layers together, what the stage with the most layers has."""
    stages, layers = settings.pipeline_parallel, max(facts.layers or 1, 1)
    return size if stages == 1 else -(-size * -(-layers // stages) // layers)


def _rank_bytes(facts: Facts, group: TensorGroup, ranks: int) -> int:
    """Bytes of a tensor on one card."""
    name = group.name
    if ranks == 1 and not any(table in name for table in TABLES):
        return group.nbytes
    if any(table in name for table in TABLES) and len(group.shape) == 2:
        # safetensors writes rows first: the vocabulary is the first dimension.
        rows = -(-group.shape[0] // VOCABULARY_STEP) * VOCABULARY_STEP
        return -(-(group.nbytes // max(group.shape[0], 1) * rows) // ranks)
    if any(part in name for part in WHOLE) or len(group.shape) < 2:
        return group.nbytes
    if any(part in name for part in KV_NAMES):
        kv_heads = (
            facts.integer("attention.head_count_kv")
            or facts.integer("attention.head_count")
            or ranks
        )
        return -(-group.nbytes // min(ranks, kv_heads))
    return -(-group.nbytes // ranks)


def _rotary(facts: Facts) -> int:
    """The table of rotations, which is counted as weights."""
    heads = facts.integer("attention.head_count") or 1
    width = facts.integer("rope.dimension_count") or facts.integer("attention.key_length")
    width = width or (facts.integer("embedding_length") or 0) // heads
    return (facts.context_length or 0) * width * _element(facts)


def _activation(facts: Facts, settings: VllmSettings, batched: int, sequences: int) -> int:
    """The peak of the profile run: the sampler's warm-up, or the widest layer for a full batch."""
    number, element, ranks = facts.integer, _element(facts), settings.tensor_parallel
    width = number("embedding_length") or 0
    used, narrow = number("expert_used_count") or 0, number("expert_feed_forward_length") or 0
    if used:
        layer = (
            batched
            * used
            * (max(2 * narrow // ranks, width) + max(narrow // ranks, width))
            * element
        )
    else:
        layer = batched * 3 * (number("feed_forward_length") or 0) // ranks * element
    sampler = SAMPLER_BYTES * sequences * facts.vocabulary
    return max(sampler, layer) + 2 * batched * width * element
