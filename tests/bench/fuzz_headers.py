"""How do headers behave under many mutations? ``python tests/bench/fuzz_headers.py [COUNT] [SEED]``

Each mutation of a small GGUF or safetensors file must give facts or a typed error, and facts must be priced or refused
with a ValueError. Prints the count, the outcomes, the slowest one and the peak of memory; exits 1 on anything else.
"""

import json
import random
import resource
import struct
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from berth.estimator import Device, Settings, estimate
from berth.facts import Facts
from berth.headers.errors import HeaderError
from berth.headers.gguf_facts import read_gguf
from berth.headers.safetensors import parse_safetensors, safetensors_facts
from headers.written import gguf, llama, reader, safetensors, value_bytes, weights

SETTINGS = Settings(context=512, parallel=2)
NUMBERS = [0, 1, 7, 8, 9, 31, 63, 64, 255, 1 << 31, (1 << 32) - 1, 1 << 53, 1 << 62, (1 << 64) - 1]
CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def seeds() -> list[tuple[bytes, int]]:
    """Files and how many of their bytes are header."""
    odd = {
        "a": [1, 2],
        "b": ["x", "yy"],
        "c": [["z"], ["w", "v"]],
        "llama.attention.head_count": [4, 4],
    }
    found = [gguf({**llama(), **odd}, weights()[:6]), gguf(llama(), weights(), order=">")]
    pairs = [
        ("tokenizer.ggml.tokens", value_bytes(["a"] * 50)),
        *((key, value_bytes(value)) for key, value in llama().items()),
    ]
    found.append(gguf(pairs, weights()))
    plain = safetensors(
        {f"model.layers.{n}.self_attn.q_proj.weight": ("BF16", (64, 64), 8192) for n in range(2)}
    )
    return [(raw, min(len(raw), 2500)) for raw in found] + [(plain, 400)]


def mutated(raw: bytes, head: int, rng: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(head), rng.randrange(5)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            changed[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif kind == 3:
            del changed[at : at + rng.randint(1, 16)]
        else:
            changed[at:at] = changed[at : at + rng.randint(1, 16)]
    return bytes(changed[: rng.randrange(head)]) if rng.random() < 0.02 else bytes(changed)


def outcome(raw: bytes) -> str:
    try:
        if raw[:4] == b"GGUF" or raw[8:9] != b"{":
            facts = read_gguf(reader(raw), len(raw))
        else:
            facts = safetensors_facts([parse_safetensors(reader(raw), len(raw))], CONFIG)
    except HeaderError as err:
        return str(err.reason)
    assert Facts.from_json(json.loads(json.dumps(facts.to_json(), allow_nan=False))) == facts
    if facts.format == "safetensors":
        return "facts"
    try:
        for devices in ((), (Device(),)):
            json.dumps(estimate(facts, SETTINGS, devices=devices).to_json())
    except ValueError:
        return "refused"
    return "priced"


def main() -> int:
    # A mutation that asks for the whole machine must end as a fault here, not as the machine's.
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    found: Counter[str] = Counter()
    files, slowest, began = seeds(), 0.0, time.perf_counter()
    for _ in range(count):
        raw = mutated(*rng.choice(files), rng)
        begin = time.perf_counter()
        try:
            found[outcome(raw)] += 1
        except Exception as err:
            Path("/tmp/fuzz-fault.bin").write_bytes(raw)
            print(f"fault: {type(err).__name__} {err}; the file is in /tmp/fuzz-fault.bin")
            raise
        slowest = max(slowest, time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{count} mutations in {time.perf_counter() - began:.0f} s: {dict(found)}")
    print(f"slowest {slowest * 1000:.0f} ms, peak of the process {peak:.0f} MiB")
    return 0 if slowest < 1.0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
