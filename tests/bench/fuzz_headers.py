"""How do headers behave under many mutations?

``python tests/bench/fuzz_headers.py [COUNT] [--seed N] [--shards N] [--every N]``

Each mutation of a small GGUF or safetensors header must give facts or a typed error; of every ``--every``-th the facts
must survive JSON and be priced or refused with a ValueError. Shards run in processes of their own, each with a seed of
its own. Prints counts, the outcomes, the slowest one in CPU time and the peak of memory; exits 1 on anything else.
"""

import argparse
import json
import multiprocessing
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from berth.estimator import Device, Settings, estimate
from berth.facts import Facts
from berth.headers.errors import HeaderError
from berth.headers.gguf_facts import read_gguf
from berth.headers.safetensors import parse_safetensors, safetensors_facts
from headers.written import gguf, llama, reader, safetensors, value_bytes

SETTINGS = Settings(context=512, parallel=2)
NUMBERS = [0, 1, 2, 7, 8, 9, 31, 63, 64, 255, 1 << 31, (1 << 32) - 1, 1 << 53, 1 << 62, 1 << 63, (1 << 64) - 1]  # fmt: skip
KINDS = [0, 1, 2, 8, 9, 12, 14, 30, 39, 99, (1 << 32) - 1]
BYTES = bytes(range(256)) + b'0123456789{}[],:"-eE.' * 10
CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
MEMORY = 1 << 30
"""A mutation that asks for the whole machine must end as a fault here, not as the machine's."""
MOST_S, MOST_MIB = 1.0, 50


def small() -> list[tuple[str, tuple[int, ...], int, int]]:
    """Tensors of a llama so narrow that its file is hardly longer than its header."""
    found = [("token_embd.weight", (8, 16), 0, 512), ("output_norm.weight", (8,), 0, 32)]
    for block in range(2):
        found += [
            (f"blk.{block}.attn_norm.weight", (8,), 0, 32),
            (f"blk.{block}.attn_q.weight", (8, 8), 0, 256),
            (f"blk.{block}.attn_k.weight", (8, 4), 0, 128),
            (f"blk.{block}.attn_v.weight", (8, 4), 0, 128),
            (f"blk.{block}.attn_output.weight", (8, 8), 0, 256),
            (f"blk.{block}.ffn_norm.weight", (8,), 0, 32),
            (f"blk.{block}.ffn_up.weight", (8, 16), 0, 512),
            (f"blk.{block}.ffn_gate.weight", (8, 16), 0, 512),
            (f"blk.{block}.ffn_down.weight", (16, 8), 0, 512),
        ]
    return found


def seeds() -> list[tuple[bytes, int]]:
    """Files and how many of their bytes are header."""
    tiny = {
        **llama(),
        "llama.embedding_length": 8,
        "llama.feed_forward_length": 16,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
    }
    odd = {
        "a": [1, 2],
        "b": ["x", "yy"],
        "c": [["z"], ["w", "v"]],
        "llama.attention.head_count": [2, 2],
    }
    data = sum(-(-nbytes // 32) * 32 for *_, nbytes in small())
    pairs = [
        ("tokenizer.ggml.tokens", value_bytes(["a"] * 50)),
        *((key, value_bytes(value)) for key, value in tiny.items()),
    ]
    files = [
        gguf({**tiny, **odd}, small()[:6], data=data),
        gguf(tiny, small(), order=">"),
        gguf(pairs, small()),
    ]
    plain = safetensors(
        {f"model.layers.{n}.self_attn.q_proj.weight": ("BF16", (8, 8), 128) for n in range(2)}
    )
    return [(raw, len(raw) - data) for raw in files] + [(plain, len(plain) - 256)]


def mutated(raw: bytes, head: int, rng: random.Random) -> bytes:
    """One to four changes of a file's header, now and then a file cut short."""
    changed = bytearray(raw)
    for _ in range(1 + int(rng.random() ** 2 * 4)):
        at, kind = int(rng.random() * head), int(rng.random() * 6)
        if kind == 0:
            changed[at] = rng.choice(BYTES)
        elif kind == 1:
            changed[at] ^= 1 << int(rng.random() * 8)
        elif kind == 2:
            changed[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif kind == 3:
            del changed[at : at + 1 + int(rng.random() * 16)]
        elif kind == 4:
            changed[at:at] = changed[at : at + 1 + int(rng.random() * 16)]
        else:
            changed[at : at + 4] = struct.pack("<I", rng.choice(KINDS))
        if at >= len(changed) - 8:
            break
    return bytes(changed[: int(rng.random() * head)]) if rng.random() < 0.02 else bytes(changed)


def facts_of(raw: bytes) -> Facts:
    if raw[:4] == b"GGUF" or raw[8:9] != b"{":
        return read_gguf(reader(raw), len(raw))
    return safetensors_facts([parse_safetensors(reader(raw), len(raw))], CONFIG)


def outcome(raw: bytes, *, whole: bool = True) -> str:
    """What became of a file: a reason, or facts and, of the ``whole`` way, whether they were priced."""
    try:
        facts = facts_of(raw)
    except HeaderError as err:
        return str(err.reason)
    if not whole:
        return "facts"
    assert Facts.from_json(json.loads(json.dumps(facts.to_json(), allow_nan=False))) == facts
    if facts.format == "safetensors":
        return "facts kept"
    try:
        for devices in ((), (Device(),)):
            json.dumps(estimate(facts, SETTINGS, devices=devices).to_json())
    except ValueError:
        return "refused"
    return "priced"


@dataclass
class Tally:
    """What one shard saw."""

    count: int = 0
    found: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    base_mib: float = 0.0
    peak_mib: float = 0.0
    cpu_s: float = 0.0
    fault: str = ""

    def line(self) -> str:
        return (
            f"{self.count} mutations in {self.cpu_s:.0f} s of CPU: {dict(self.found.most_common())}; "
            f"slowest {self.slowest_s * 1000:.1f} ms, peak {self.peak_mib:.0f} MiB "
            f"({self.peak_mib - self.base_mib:.1f} over the start)"
        )


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def shard(count: int, seed: int, every: int, say: Callable[[Tally], None] | None = None) -> Tally:
    """``count`` mutations from ``seed``; stops at the first fault and keeps its file."""
    rng, files, tally = random.Random(seed), seeds(), Tally()
    for raw, _ in files:
        outcome(raw)
    tally.base_mib, began, clock = _peak_mib(), time.process_time(), time.process_time
    begin = clock()
    for number in range(1, count + 1):
        raw = mutated(*files[int(rng.random() * len(files))], rng)
        try:
            tally.found[outcome(raw, whole=number % every == 0)] += 1
        except Exception as err:
            kept = Path(f"/tmp/fuzz-fault-{seed}.bin")
            kept.write_bytes(raw)
            tally.fault = f"{type(err).__name__}: {err}; the file is {kept}"
            break
        end = clock()
        tally.slowest_s, begin = max(tally.slowest_s, end - begin), end
        if say is not None and number % 100_000 == 0:
            tally.count, tally.cpu_s, tally.peak_mib = number, end - began, _peak_mib()
            say(tally)
    tally.count, tally.cpu_s, tally.peak_mib = sum(tally.found.values()), clock() - began, _peak_mib()  # fmt: skip
    return tally


def _run(job: tuple[int, int, int]) -> Tally:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return shard(*job, say=lambda tally: print(f"seed {job[1]}: {tally.line()}", flush=True))


def main() -> int:
    words = argparse.ArgumentParser()
    words.add_argument("count", nargs="?", type=int, default=20_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--shards", type=int, default=1)
    words.add_argument("--every", type=int, default=1, help="price one in so many")
    asked = words.parse_args()
    jobs = [
        (asked.count // asked.shards, asked.seed + number, asked.every)
        for number in range(asked.shards)
    ]
    with multiprocessing.Pool(asked.shards, maxtasksperchild=1) as pool:
        tallies = pool.map(_run, jobs, chunksize=1)
    total = Tally()
    for one in tallies:
        total.count, total.cpu_s = total.count + one.count, total.cpu_s + one.cpu_s
        total.found += one.found
        total.slowest_s = max(total.slowest_s, one.slowest_s)
        if one.peak_mib > total.peak_mib:
            total.peak_mib, total.base_mib = one.peak_mib, one.base_mib
        if one.fault:
            print(f"fault: {one.fault}")
    print(total.line())
    sound = total.slowest_s < MOST_S and total.peak_mib - total.base_mib < MOST_MIB
    return 0 if sound and not any(one.fault for one in tallies) else 1


if __name__ == "__main__":
    raise SystemExit(main())
