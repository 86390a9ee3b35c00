"""What does a projector (mmproj) take beside its model?

It is loaded whole, not mapped; its compute buffer is that of one image (notes on memory, section 3.9).
"""

from berth.facts import Facts

FIXED = frozenset(
    {
        "gemma3", "gemma3nv", "mlp", "mlp_norm", "ldp", "ldpv2", "resampler", "adapter", "idefics3", "internvl",
        "llama4", "janus_pro", "cogvlm",
    }
)  # fmt: skip
"""Projectors that see an image, or each tile of one, in one size, which the header has."""
MOST_TOKENS = {
    "qwen2vl_merger": (4096, 2),
    "qwen2.5vl_merger": (4096, 2),
    "qwen3vl_merger": (4096, 2),
    "pixtral": (1024, 1),
    "lightonocr": (1024, 1),
    "lfm2": (256, 2),
    "gemma4v": (280, 3),
}
"""Projectors of images of any size: the most tokens that llama.cpp makes of one, and how many patches a side are merged
into one where the header does not say.
"""
ANY = (4096, 2)
"""The same for projectors that are not known here: the most of any."""


def unmeasured(facts: Facts) -> str:
    """Why a projector's buffer is a bound; empty where it is not."""
    kind = _kind(facts)
    if kind in FIXED and _fixed(facts):
        return ""
    return (
        f"the projector {kind!r} takes images of any size: its buffer is that of the largest, "
        f"{_patches(facts)} patches"
    )


def _kind(facts: Facts) -> str:
    return str(
        facts.hparams.get("projector_type") or facts.hparams.get("vision.projector_type") or ""
    )


def _fixed(facts: Facts) -> int:
    """Patches of the header's image; 0 where it has none."""
    image = facts.integer("vision.image_size") or 0
    return (image // max(facts.integer("vision.patch_size") or 0, 1)) ** 2


def _patches(facts: Facts) -> int:
    """Patches of the largest image: of the header's one size, else of its most pixels, else of the engine's most tokens."""
    kind, number = _kind(facts), facts.integer
    fixed, patch = _fixed(facts), number("vision.patch_size") or 0
    if kind in FIXED and fixed:
        return fixed
    pixels = number("vision.image_max_pixels") or 0
    if pixels > 0 and patch > 0:
        return max(pixels // patch**2, 1)
    tokens, side = MOST_TOKENS.get(kind, ANY)
    said = number("vision.spatial_merge_size") or number("vision.projector.scale_factor") or side
    return max(
        tokens * min(max(said, 1), MOST_MERGED) ** 2, fixed if kind not in MOST_TOKENS else 0
    )


MOST_MERGED = 8
"""No projector merges more patches a side; a header that says so is not believed."""


def projector_bytes(facts: Facts, *, flash: bool) -> int:
    """Weights and compute buffer of a projector, in bytes."""
    weights = sum(-(-group.nbytes // 32) * 32 * group.count for group in facts.tensors)
    return weights + _compute(facts, flash=flash)


def _compute(facts: Facts, *, flash: bool) -> int:
    number = facts.integer
    image = number("vision.image_size") or 0
    width, forward = (
        number("vision.embedding_length") or 0,
        number("vision.feed_forward_length") or 0,
    )
    heads, joined = number("vision.attention.head_count") or 0, number("vision.projection_dim") or 0
    patches = _patches(facts)
    picture = 4 * 3 * image * image
    blocks = 4 * patches * (forward + 3 * width)
    if not flash:
        blocks = max(blocks, 4 * patches * patches * heads + 24 * patches * width)
    merge = 8 * patches * joined + 8 * patches * width + picture if _kind(facts) != "gemma3" else 0
    return max(blocks, merge)
