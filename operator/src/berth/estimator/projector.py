"""What does a projector (mmproj) take beside its model?

It is loaded whole, not mapped; its compute buffer is that of one image (notes on memory, section 3.9).
"""

from berth.facts import Facts

DYNAMIC_PATCHES = 4096
"""Patches assumed for towers whose image size is not fixed: 4096 is llama.cpp's largest default image."""


def projector_bytes(facts: Facts, *, flash: bool) -> int:
    """Weights and compute buffer of a projector, in bytes."""
    weights = sum(-(-group.nbytes // 32) * 32 * group.count for group in facts.tensors)
    return weights + _compute(facts, flash=flash)


def _compute(facts: Facts, *, flash: bool) -> int:
    number = facts.integer
    image, patch = number("vision.image_size") or 0, number("vision.patch_size") or 0
    width, forward = (
        number("vision.embedding_length") or 0,
        number("vision.feed_forward_length") or 0,
    )
    heads, joined = number("vision.attention.head_count") or 0, number("vision.projection_dim") or 0
    patches = (image // patch) ** 2 if image and patch else DYNAMIC_PATCHES
    picture = 4 * 3 * image * image
    blocks = 4 * patches * (forward + 3 * width)
    if not flash:
        blocks = max(blocks, 4 * patches * patches * heads + 24 * patches * width)
    merge = (
        8 * patches * joined + 8 * patches * width + picture
        if facts.hparams.get("projector_type") != "gemma3"
        else 0
    )
    return max(blocks, merge)
