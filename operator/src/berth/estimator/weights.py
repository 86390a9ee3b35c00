"""How many bytes of weights lie in which buffer?

Rules of llama.cpp's model loader (notes on memory, section 3.2). A group of equal tensors is priced once
per owner, so the cost is that of the kinds of tensor, not of the tensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from berth.estimator import architectures as arch
from berth.estimator.cache import padded
from berth.estimator.placing import Placing
from berth.estimator.settings import CPU, CPU_REPACK, Host, Settings
from berth.estimator.shape import Layer, Shape
from berth.facts import Facts, TensorGroup

INPUT = frozenset({"token_embd", "position_embd", "token_types", "per_layer_token_embd"})
"""Tables that are only looked up: always on the host."""
OUTPUT = frozenset(
    {
        "output", "output_norm", "cls", "cls.output", "cls.norm", "dense_2", "dense_3", "altup_proj",
        "altup_unembd_proj", "enc.output_norm", "dec.output_norm", "token_embd_norm_lfm2", "output_norm_lfm2",
    }
)  # fmt: skip
ROPE = frozenset({"rope_freqs", "rope_factors_long", "rope_factors_short"})
"""Small tables of which every device that uses one has its own."""
OUTPUT_NORM_AS_INPUT = frozenset({"lfm2", "lfm2moe"})
"""Their output norm is stored under ``token_embd_norm``."""
EMBEDDING = "token_embd.weight"
REPACK_ROWS = 8


@dataclass(frozen=True, slots=True)
class Sized:
    """``count`` equal tensors in ``owner``'s buffer."""

    owner: str
    group: TensorGroup
    count: int


def place_weights(
    facts: Facts, shape: Shape, placing: Placing, settings: Settings, host: Host
) -> list[Sized]:
    """Every tensor with its buffer, equal ones together; copies that the engine makes are in it."""
    repacks = host.repacks if _host_repacks(placing, settings) else frozenset()
    found: list[Sized] = []
    runs = _runs(shape, placing)
    for group in facts.tensors:
        for owner, count in _owners(group, shape, placing, runs):
            repacked = owner == CPU and _is_repacked(group, repacks)
            found.append(Sized(CPU_REPACK if repacked else owner, group, count))
    found.extend(_tied(facts, shape, placing, repacks))
    return found


def weight_bytes(sized: list[Sized], placing: Placing) -> dict[str, int]:
    """Bytes of weights by buffer, each tensor rounded as its buffer rounds."""
    sums: dict[str, int] = {}
    for one in sized:
        group, alignment = one.group, placing.alignment(one.owner)
        row = group.shape[0] if group.shape else 1
        sums[one.owner] = sums.get(one.owner, 0) + one.count * padded(
            group.nbytes, group.kind, row, alignment
        )
    return sums


def mapped_twice(sized: list[Sized]) -> int:
    """Bytes of the host's weights that are there twice, and are the same pages where the file is mapped."""
    tables = [one.group for one in sized if one.owner == CPU and one.group.name == EMBEDDING]
    return sum(table.nbytes for table in tables[1:])


def _host_repacks(placing: Placing, settings: Settings) -> bool:
    """Pinned host buffers come before repacked ones, so a CUDA device ends repacking."""
    pinned = any(device.rules == "cuda" for device in placing.devices) and not settings.no_host
    return settings.repack and not pinned


Run = tuple[int, int, str]
"""Blocks from the first to before the second number, which have one owner."""


def _runs(shape: Shape, placing: Placing) -> list[Run]:
    """The owners of all blocks that are loaded; those of next-token predictors are not."""
    runs: list[Run] = []
    for number, owner in enumerate(placing.blocks[: len(shape.layers)]):
        if runs and runs[-1][2] == owner:
            runs[-1] = (runs[-1][0], number + 1, owner)
        else:
            runs.append((number, number + 1, owner))
    return [*runs, (shape.blocks, 1 << 32, placing.output)]


def _owners(
    group: TensorGroup, shape: Shape, placing: Placing, runs: list[Run]
) -> Iterator[tuple[str, int]]:
    if not group.blocks:
        yield from ((owner, group.copies) for owner in _single(group.name, shape, placing))
        return
    counts: dict[str, int] = {}
    for begin, end in group.blocks:
        for first, last, owner in runs:
            low, high = max(begin, first), min(end, last)
            if low >= high:
                continue
            if not placing.overrides:
                counts[owner] = counts.get(owner, 0) + (high - low) * group.copies
                continue
            for block in range(low, high):
                found = placing.override(group.named(block)) or owner
                counts[found] = counts.get(found, 0) + group.copies
    yield from counts.items()


def tensor_owner(group: TensorGroup, block: int, shape: Shape, placing: Placing) -> str:
    """The device of one tensor; for a table that several hold, the copy of block 0's device."""
    if not group.blocks or block < 0:
        return _single(group.name, shape, placing)[0]
    if placing.overrides:
        override = placing.override(group.named(block))
        if override is not None:
            return override
    return placing.blocks[block] if block < len(placing.blocks) else placing.output


def _single(name: str, shape: Shape, placing: Placing) -> list[str]:
    """The owners of a tensor outside the blocks."""
    override = placing.override(name)
    if override is not None:
        return [override]
    stem = name.removesuffix(".weight").removesuffix(".bias")
    if stem in INPUT:
        return [CPU]
    if stem in ROPE:
        users = [layer for layer in shape.layers if uses_rope_table(shape, layer)]
        return sorted({placing.blocks[layer.number] for layer in users}) or [CPU]
    if stem == "token_embd_norm" and shape.architecture in OUTPUT_NORM_AS_INPUT:
        return [placing.output]
    if stem in OUTPUT:
        return [placing.output]
    return [placing.blocks[0] if placing.blocks else placing.output]


def uses_rope_table(shape: Shape, layer: Layer) -> bool:
    """Whether a block rotates by the file's table: gemma4's sliding layers do not."""
    return not (shape.architecture == "gemma4" and layer.window)


def _is_repacked(group: TensorGroup, repacks: frozenset[str]) -> bool:
    """Whether the CPU keeps a rearranged copy: matrices and expert stacks of some types, whole rows of 8."""
    if group.kind not in repacks or len(group.shape) < 2 or group.shape[1] % REPACK_ROWS:
        return False
    stem = group.name.removesuffix(".weight")
    if stem in INPUT:
        return False
    return len(group.shape) == 2 or (len(group.shape) == 3 and "exps" in stem)


def _tied(facts: Facts, shape: Shape, placing: Placing, repacks: frozenset[str]) -> Iterator[Sized]:
    """The second copy of the token embedding that stands in for a missing output matrix."""
    if not facts.tied_embeddings or shape.architecture in arch.NO_OUTPUT:
        return
    table = next((group for group in facts.tensors if group.name == EMBEDDING), None)
    if table is None:
        return
    owner = placing.override(table.name) or placing.output
    if owner != CPU:
        yield Sized(owner, table, 1)
    elif table.kind in repacks and len(table.shape) == 2 and table.shape[1] % REPACK_ROWS == 0:
        yield Sized(CPU_REPACK, table, 1)
    elif shape.architecture == "gemma4":
        yield Sized(CPU, table, 1)
