"""How fast is a large header read, against gguf.GGUFReader on the same file in the same run?

Prints ``ratio header-parse VALUE goal 5``; the exit code is 1 below the goal.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gguf import GGUFReader

sys.path.insert(0, str(Path(__file__).parent.parent))

from berth.headers.local import read_path
from headers.written import gguf, llama, value_bytes, weights

GOAL, RUNS = 5.0, 3


def best_s(work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> int:
    tokens = [b"token number %09d" % number for number in range(262_144)]
    merges = [b"piece%06d piece%07d" % (number, number) for number in range(500_000)]
    pairs = [
        ("tokenizer.ggml.tokens", value_bytes(tokens)),
        ("tokenizer.ggml.merges", value_bytes(merges)),
    ]
    raw = gguf([*((key, value_bytes(value)) for key, value in llama().items()), *pairs], weights())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.gguf"
        path.write_bytes(raw)
        ours, theirs = best_s(lambda: read_path(str(path))), best_s(lambda: GGUFReader(path))
    print(
        f"header of {len(raw) / 1e6:.1f} MB: ours {ours * 1000:.0f} ms, gguf.GGUFReader {theirs * 1000:.0f} ms"
    )
    print(f"ratio header-parse {theirs / ours:.1f} goal {GOAL:g}")
    return 0 if theirs / ours >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
