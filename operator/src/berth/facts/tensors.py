"""Which tensors does a file hold, written once per group of equal ones?

A model repeats the same tensors block after block, so ``blk.0.attn_q.weight`` … ``blk.31.attn_q.weight``
of one type and shape are one group. That keeps the facts of a 126-layer model within a few KiB.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_BLOCK = re.compile(
    r"^(?P<head>(?:.*\.)?(?:blk|layers|layer|h|blocks|block)\.)(?P<block>\d+)(?P<tail>\..*)$"
)
_EXPERT = re.compile(r"\.\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as a header names it: ``shape`` row length first, ``nbytes`` without padding."""

    name: str
    kind: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Equal tensors of several blocks.

    ``name`` holds ``{}`` for the block number; ``blocks`` are half-open ranges of block numbers, empty
    for a tensor outside the blocks. ``copies`` counts equal tensors in one block (experts stored one by
    one). ``nbytes`` are the bytes of one tensor, without padding.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    nbytes: int
    blocks: tuple[tuple[int, int], ...] = ()
    copies: int = 1

    @property
    def count(self) -> int:
        """How many tensors the group stands for."""
        per_block = sum(stop - start for start, stop in self.blocks) if self.blocks else 1
        return per_block * self.copies

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        total = 1
        for dimension in self.shape:
            total *= dimension
        return total

    @property
    def total(self) -> int:
        """Bytes of the whole group, without padding."""
        return self.nbytes * self.count

    def block_numbers(self) -> Iterator[int]:
        """The block numbers, ascending; none for a tensor outside the blocks."""
        for start, stop in self.blocks:
            yield from range(start, stop)

    def in_block(self, block: int) -> bool:
        """Whether a block has one of them."""
        return any(start <= block < stop for start, stop in self.blocks)

    def named(self, block: int) -> str:
        """The tensor's name in one block (of the first copy)."""
        return (
            self.name.format(block, *([0] * self.name.count("{}")))
            if "{}" in self.name
            else self.name
        )

    def to_json(self) -> list[Any]:
        """A short list: name, kind, shape, bytes, ranges, copies; trailing defaults left out."""
        row: list[Any] = [self.name, self.kind, list(self.shape), self.nbytes]
        if self.blocks or self.copies != 1:
            row.append([number for pair in self.blocks for number in pair])
        if self.copies != 1:
            row.append(self.copies)
        return row

    @staticmethod
    def from_json(row: list[Any]) -> "TensorGroup":
        """The inverse of :meth:`to_json`."""
        flat = row[4] if len(row) > 4 else []
        pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
        return TensorGroup(
            row[0], row[1], tuple(row[2]), row[3], pairs, row[5] if len(row) > 5 else 1
        )


def split_name(name: str) -> tuple[str, int | None]:
    """A tensor's name with its block number (and expert numbers) replaced by ``{}``, and the number."""
    match = _BLOCK.match(name)
    if match is None:
        return name.replace("{", "(").replace("}", ")"), None
    parts = [match[part].replace("{", "(").replace("}", ")") for part in ("head", "tail")]
    return parts[0] + "{}" + _EXPERT.sub(".{}", parts[1]), int(match["block"])


def group_tensors(tensors: Iterable[Tensor]) -> tuple[TensorGroup, ...]:
    """Equal tensors of several blocks as one group, in the order in which each group is first seen."""
    seen: dict[tuple[str, str, tuple[int, ...], int], dict[int | None, int]] = {}
    for tensor in tensors:
        name, block = split_name(tensor.name)
        counts = seen.setdefault((name, tensor.kind, tensor.shape, tensor.nbytes), {})
        counts[block] = counts.get(block, 0) + 1
    return tuple(group for key, counts in seen.items() for group in _groups(key, counts))


def _groups(
    key: tuple[str, str, tuple[int, ...], int], counts: dict[int | None, int]
) -> Iterator[TensorGroup]:
    for copies in dict.fromkeys(counts.values()):
        blocks = sorted(
            block for block, count in counts.items() if count == copies and block is not None
        )
        if blocks or None in counts:
            yield TensorGroup(*key, blocks=_ranges(blocks), copies=copies)


def _ranges(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return tuple(ranges)
