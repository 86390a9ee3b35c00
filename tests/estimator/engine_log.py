"""What does a llama-server say that it allocated? (Its log at ``-lv 4``, builds 11434 to 11669)"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(
    r"(?P<owner>\S+)\s+(?P<kind>model|KV|RS|output|compute) buffer size\s*=\s*(?P<size>[\d.]+) MiB"
)


@dataclass(frozen=True, slots=True)
class Logged:
    """MiB by owner and kind: ``model``, ``KV``, ``RS`` (recurrent state), ``output``, ``compute``."""

    mib: dict[tuple[str, str], float]

    def total(self, *kinds: str, owner: str | None = None) -> float:
        """The sum of some kinds, of one owner or of all."""
        return sum(
            size
            for (name, kind), size in self.mib.items()
            if kind in kinds and owner in {None, name}
        )


def read_log(lines: Iterable[str]) -> Logged:
    """The buffers that a log names.

    1. Weights begin a round: a run that first tries what fits has two, and the last counts.
    2. A model with sliding windows has two KV lines for each device in one round: they are added.
    3. A compute or output buffer is named anew each time it is reserved: the last counts.
    4. A piece of a log without weights that says everything twice says it once.
    """
    found: dict[tuple[str, str], list[float]] = {}
    weighed, loaded = False, False
    for line in lines:
        match = _LINE.search(line)
        if match is None:
            continue
        if match["kind"] == "model" and loaded:
            found, loaded = {}, False
        weighed, loaded = weighed or match["kind"] == "model", loaded or match["kind"] != "model"
        found.setdefault((match["owner"], match["kind"]), []).append(float(match["size"]))
    return Logged({key: _sum(key[1], sizes, weighed=weighed) for key, sizes in found.items()})


def _sum(kind: str, sizes: list[float], *, weighed: bool) -> float:
    if kind in {"compute", "output"}:
        return sizes[-1]
    half = len(sizes) // 2
    twice = not weighed and len(sizes) % 2 == 0 and sizes[:half] == sizes[half:]
    return sum(sizes[:half] if twice else sizes)
