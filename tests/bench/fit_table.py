"""How well do estimates agree with what was measured, and what would others say? ``python tests/bench/fit_table.py``

The first table holds every measured case against its estimate, by kind. The second prices one 8B model at 32768 tokens
by the rules that public estimators state (named in docs/explanation/memory.md), applied by us to the same header.
Exits 1 when weights, cache or state differ anywhere, or a compute buffer by more than 1 % of its case's total.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from berth.estimator import Device, Settings, estimate
from berth.facts import Facts
from berth.runtimes.llamacpp_flags import parse
from berth.units import GiB, MiB
from estimator.models import cases, devices_of, models, settings_of
from estimator.test_engine import measured

EIGHT_B, CONTEXT = "llama-3.1-8b-q4km", 32768


@dataclass(frozen=True)
class Row:
    """One buffer: what it is, what was measured and estimated, and the total that it belongs to."""

    case: str
    source: str
    kind: str
    want: float
    have: float
    total: float

    @property
    def error(self) -> float:
        """The difference as a share of the total."""
        return (self.have - self.want) / self.total if self.total else 0.0


def buffers() -> Iterator[Row]:
    """Every buffer that was measured in bytes."""
    for case in (case for case in cases() if "measured_bytes" in case):
        facts, settings = models()[case["model"]], settings_of(case["settings"])
        found = estimate(facts, settings, devices=devices_of(case))
        source = "CUDA's rules" if case["cuda_rules"] else "devices" if case["devices"] else "host"
        for owner, want in case["measured_bytes"].items():
            have, total = found.buffers[owner], sum(want.values())
            for kind in ("model", "context", "compute"):
                if kind == "model" and owner == "CPU" and not want[kind]:
                    continue  # A real load maps the host's weights and does not count them.
                name = f"{case['id']} {owner}"
                yield Row(name, source, kind, want[kind], getattr(have, kind), total)


def logged() -> Iterator[Row]:
    """Every line of a real server's log, in MiB with two decimals."""
    for case in measured()[1]:
        found = estimate(measured()[0][case["model"]], parse(case["flags"]).settings)
        host, log = found.buffers["CPU"], case["logged_mib"]
        cache = found.kinds.kv_cache + found.kinds.state
        have = {
            "weights": found.kinds.weights,
            "cache": cache,
            "compute": host.compute,
            "output": host.output,
        }
        name = f"{case['model']} {' '.join(case['flags'])}"
        for kind, nbytes in have.items():
            yield Row(name, "log", kind, log[kind], nbytes / MiB, sum(log.values()))


def table(rows: list[Row], same: float) -> None:
    """By source and kind: how many, how many equal, the worst of the others either way."""
    print(f"{'source':14}{'kind':9}{'count':>6}{'equal':>7}{'worst under':>14}{'worst over':>14}")
    for source in dict.fromkeys(row.source for row in rows):
        for kind in dict.fromkeys(row.kind for row in rows if row.source == source):
            some = [row for row in rows if (row.source, row.kind) == (source, kind)]
            equal = sum(abs(row.have - row.want) <= same for row in some)
            off = [row.error for row in some if abs(row.have - row.want) > same]
            under, over = min([0.0, *off]), max([0.0, *off])
            print(f"{source:14}{kind:9}{len(some):6}{equal:7}{under:14.3%}{over:14.3%}")
    for row in rows:
        if abs(row.have - row.want) > same:
            print(
                f"  {row.case} {row.kind}: {row.have} for {row.want}, {row.error:+.3%} of the total"
            )


def numbers(facts: Facts) -> tuple[int, int, int, int]:
    """Layers, kv heads, heads and width of a header."""
    heads, kv = facts.integer("attention.head_count"), facts.integer("attention.head_count_kv")
    width = facts.integer("embedding_length")
    assert facts.layers is not None
    assert heads is not None
    assert kv is not None
    assert width is not None
    return facts.layers, kv, heads, width


def rules() -> dict[str, Callable[[Facts, int], float]]:
    """KV bytes at a context by each published rule."""

    def per_head(facts: Facts, context: int, bytes_each: float) -> float:
        layers, kv, heads, width = numbers(facts)
        return 2 * layers * kv * (width / heads) * context * bytes_each

    def all_heads(facts: Facts, context: int) -> float:
        layers, _, _, width = numbers(facts)
        return 2 * layers * width * context * 2

    return {
        "gguf-parser-go; Ollama before loading: kv heads, 2 bytes": lambda f, c: per_head(f, c, 2),
        "calculators by kv heads with an 8-bit switch, on": lambda f, c: per_head(f, c, 1),
        "calculators by the width alone: every head has its own": all_heads,
        "accelerate estimate-memory: weights alone": lambda f, c: 0.0,
    }


def compare() -> None:
    """One 8B model at 32768 tokens: ours in whole, and the cache by the rules of others."""
    facts = models()[EIGHT_B]
    settings = Settings(context=CONTEXT, parallel=1, n_gpu_layers=99, cache_ram_mib=0)
    found = estimate(facts, settings, devices=[Device()])
    print(f"\n{EIGHT_B} at {CONTEXT} tokens, one slot, all on one card")
    for owner, one in found.buffers.items():
        print(f"  {owner}: model {one.model} context {one.context} compute {one.compute} output {one.output}")  # fmt: skip
    exact = found.kinds.kv_cache
    print(f"  {'KV cache':60}{'GiB':>7}{'off by':>9}")
    print(f"  {'berth fit':60}{exact / GiB:7.2f}")
    for name, rule in rules().items():
        nbytes = rule(facts, CONTEXT)
        print(f"  {name:60}{nbytes / GiB:7.2f}{nbytes / exact - 1:+9.0%}")


def main() -> int:
    rows, lines = list(buffers()), list(logged())
    table(rows, 0)
    table(lines, 0.011)
    compare()
    wrong = [row for row in rows if row.want != row.have and row.kind != "compute"]
    far = [row for row in rows if abs(row.error) > 0.01]
    return 1 if wrong or far else 0


if __name__ == "__main__":
    raise SystemExit(main())
