"""What is each layer of a model, as far as memory goes?

Everything that the cache and the graph need of a header, worked out once per model.
"""

from collections.abc import Callable
from dataclasses import dataclass

from berth.estimator import architectures as arch
from berth.estimator.same import ByFacts
from berth.facts import MAX_BLOCKS, Facts


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. Heads and widths are in elements; ``window`` is whether it slides.

    ``attends``: it has attention. ``keeps``: its keys and values are cached. ``recurrent``: it has a state.
    """

    number: int
    heads: int
    kv_heads: int
    key: int
    value: int
    window: bool
    attends: bool
    keeps: bool
    recurrent: bool
    feed_forward: int
    alike: int = 0
    """The same for layers that differ in their number only."""
    akin: int = 0
    """The same for layers that differ in their number and their window only."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's layers and the widths that they share, in elements."""

    architecture: str
    embedding: int
    vocabulary: int
    trained: int
    blocks: int
    """All blocks, those of next-token predictors too: what ``n_gpu_layers`` counts."""
    trunk: int
    """Blocks without those of next-token predictors."""
    layers: tuple[Layer, ...]
    window: int
    mla: bool
    encoder: bool
    causal: bool
    state_r: int
    state_s: int
    experts: int
    experts_used: int
    expert_feed_forward: int

    def lender(self, layer: Layer) -> Layer:
        """The layer whose cache a layer without one reads: the last owner but one if it slides, else the last."""
        owners = [one for one in self.layers if one.keeps]
        return owners[-2 if layer.window and len(owners) > 1 else -1]

    @property
    def slides(self) -> bool:
        """Whether any layer has a window."""
        return any(layer.window for layer in self.layers)

    @property
    def widest_value(self) -> int:
        """The widest V row of any layer, in elements."""
        return max((layer.value * layer.kv_heads for layer in self.layers), default=0)


def _shape(facts: Facts) -> Shape:
    """The model's shape, worked out anew."""
    name = facts.architecture
    blocks = min(max(facts.layers or 0, 0), MAX_BLOCKS)
    trunk = max(blocks - max(facts.integer("nextn_predict_layers") or 0, 0), 0)
    window = window_of(facts)
    numbers = _numbers(facts)
    layers = _layers(facts, numbers, trunk, window)
    state_r, state_s = _state(facts)
    return Shape(
        architecture=name,
        embedding=facts.integer("embedding_length") or 0,
        vocabulary=facts.vocabulary,
        trained=facts.context_length or 0,
        blocks=blocks,
        trunk=trunk,
        layers=layers,
        window=window if any(layer.window for layer in layers) else 0,
        mla=bool(
            facts.integer("attention.key_length_mla")
            and facts.integer("attention.value_length_mla")
        ),
        encoder=name in arch.ENCODERS,
        causal=bool(facts.hparams.get("attention.causal", name not in arch.ENCODERS)),
        state_r=state_r,
        state_s=state_s,
        experts=facts.integer("expert_count") or 0,
        experts_used=facts.integer("expert_used_count") or 0,
        expert_feed_forward=facts.integer("expert_feed_forward_length")
        or facts.integer("feed_forward_length")
        or 0,
    )


shape_of = ByFacts(_shape)
"""The model's shape."""


def window_of(facts: Facts) -> int:
    """The sliding window in tokens; 0 where the architecture has none or the header turns it off."""
    rule = arch.WINDOWS.get(facts.architecture)
    if rule is None or (
        facts.architecture in arch.WINDOW_BLOCKS
        and facts.layers != arch.WINDOW_BLOCKS[facts.architecture]
    ):
        return 0
    said = facts.integer("attention.sliding_window")
    if said is None:
        return rule.width
    return rule.width if said > 0 and facts.architecture in arch.FIXED_WINDOW else max(said, 0)


@dataclass(frozen=True, slots=True)
class _Numbers:
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    forward: tuple[int, ...]
    full: tuple[int, int]
    swa: tuple[int, int]
    slides: Callable[[int], bool]
    own_cache: int


def _layers(facts: Facts, numbers: _Numbers, count: int, window: int) -> tuple[Layer, ...]:
    seen: dict[tuple[object, ...], int] = {}
    kin: dict[tuple[object, ...], int] = {}
    found = []
    for number in range(count):
        fields = _layer(facts, numbers, number, window)
        alike = seen.setdefault(fields, len(seen))
        akin = kin.setdefault((*fields[:_WINDOW], *fields[_WINDOW + 1 :]), len(kin))
        found.append(Layer(number, *fields, alike, akin))
    return tuple(found)


_WINDOW = 4
"""The window's place among a layer's fields."""


def _layer(
    facts: Facts, numbers: _Numbers, number: int, window: int
) -> tuple[int, int, int, int, bool, bool, bool, bool, int]:
    """A layer's fields behind its number."""
    kv_heads, forward = numbers.kv_heads[number], numbers.forward[number]
    slides = window > 0 and numbers.slides(number)
    recurrent, attends = _kinds(facts, number, kv_heads, forward)
    key, value = numbers.swa if slides else numbers.full
    keeps = attends and facts.architecture not in arch.ENCODERS and number < numbers.own_cache
    slides = slides and attends
    return (numbers.heads[number], kv_heads, key, value, slides, attends, keeps, recurrent, forward)


def _numbers(facts: Facts) -> _Numbers:
    count = min(max(facts.layers or 0, 0), MAX_BLOCKS)
    heads = facts.per_layer("attention.head_count") or (0,) * count
    kv_heads = facts.per_layer("attention.head_count_kv") or heads
    first = heads[0] if heads else 0
    width = (facts.integer("embedding_length") or 0) // first if first else 0
    key = facts.integer("attention.key_length") or width
    value = facts.integer("attention.value_length") or width
    swa = (
        facts.integer("attention.key_length_swa") or key,
        facts.integer("attention.value_length_swa") or value,
    )
    return _Numbers(
        heads=heads,
        kv_heads=kv_heads,
        forward=facts.per_layer("feed_forward_length") or (0,) * count,
        full=(key, value),
        swa=swa,
        slides=_pattern(facts),
        own_cache=_own_cache(facts),
    )


def _pattern(facts: Facts) -> Callable[[int], bool]:
    """Which layers slide: the header's array, else its period, else the architecture's."""
    rule = arch.WINDOWS.get(facts.architecture)
    said = facts.hparams.get("attention.sliding_window_pattern")
    if isinstance(said, tuple):
        flags = [bool(flag) for flag in said]
        return lambda number: number < len(flags) and flags[number]
    if rule is None:
        return lambda number: False
    period = said if isinstance(said, int) and not isinstance(said, bool) else rule.period
    if facts.architecture == "lfm2":
        kv_heads = facts.per_layer("attention.head_count_kv") or ()
        return lambda number: number < len(kv_heads) and kv_heads[number] > 0
    if period <= 0:
        return lambda number: True
    last = 0 if rule.dense_first else period - 1
    return lambda number: number % period != last


def _kinds(facts: Facts, number: int, kv_heads: int, forward: int) -> tuple[bool, bool]:
    """Whether a layer is recurrent, and whether it attends."""
    name = facts.architecture
    if name in arch.RECURRENT:
        return True, False
    if name in arch.BOTH:
        return True, True
    if name in arch.BY_KV_HEADS:
        return kv_heads == 0, kv_heads != 0
    if name in arch.NEMOTRON:
        return kv_heads == 0 and forward == 0, kv_heads != 0 and forward == 0
    if name in arch.BY_INTERVAL:
        said = facts.hparams.get("attention.recurrent_layers")
        if isinstance(said, tuple):
            recurrent = number < len(said) and bool(said[number])
        else:
            interval = facts.integer("full_attention_interval") or arch.BY_INTERVAL[name]
            recurrent = (number + 1) % interval != 0
        return recurrent, not recurrent
    return False, kv_heads > 0 or name not in arch.FOLLOWED


def _own_cache(facts: Facts) -> int:
    """The first so many layers own a cache; at least one does."""
    count = facts.layers or 0
    if facts.architecture not in arch.SHARED_KV:
        return count
    fixed = arch.SHARED_KV[facts.architecture]
    if fixed:
        return min(fixed, count)
    return max(count - max(facts.integer("attention.shared_kv_layers") or 0, 0), 1)


def _state(facts: Facts) -> tuple[int, int]:
    """Elements of one slot's recurrent state in one layer: what is shifted, and what is carried."""
    number = facts.integer
    embedding = number("embedding_length") or 0
    wkv = number("wkv.head_size") or 0
    if wkv:
        return (number("token_shift_count") or 2) * embedding, embedding * wkv
    short = number("shortconv.l_cache") or 0
    if short:
        return embedding * (short - 1), 0
    heads, kernel = number("attention.head_count") or 0, number("ssm.conv_kernel") or 0
    kda = number("kda.head_dim") or 0
    if kda:
        return 3 * (kernel - 1 if kernel else 3) * heads * kda, kda * kda * heads
    if facts.architecture == "minimax-01":
        head = _numbers(facts).full[0]
        return 0, head * head * heads
    inner, groups, state = (
        number(f"ssm.{key}") or 0 for key in ("inner_size", "group_count", "state_size")
    )
    return max(kernel - 1, 0) * (inner + 2 * groups * state), state * inner
