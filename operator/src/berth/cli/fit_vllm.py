"""How much will a safetensors model take in vLLM or SGLang, for ``berth fit``?"""

import json
from collections.abc import Sequence

from berth.cli.errors import CommandError
from berth.estimator.vllm import HOST_BYTES as HOST
from berth.estimator.vllm import VllmEstimate, VllmSettings, estimate_vllm
from berth.facts import Facts
from berth.runtimes.vllm_flags import parse
from berth.units import GiB, show_bytes

DEFAULT_CARD = 80 * GiB
NOTE = "weights and cache follow vLLM's rules; what it computes in is fitted to public logs and rounded up"


def settings_of(
    facts: Facts, words: Sequence[str] | None, profile: dict[str, object], cards: int
) -> VllmSettings:
    """vLLM's settings from a pasted command line, else from a profile's fields."""
    try:
        if words is not None:
            return parse(words)
        context, parallel = (
            int(str(profile.get("contextLength", 0))),
            int(str(profile.get("parallel", 1))),
        )
        return VllmSettings(
            context or min(facts.context_length or 4096, 4096), parallel, max(cards, 1)
        )
    except ValueError as err:
        raise CommandError("read the settings", wrong=str(err), todo="correct the flag") from err


def report(facts: Facts, settings: VllmSettings, *, card: int, as_json: bool) -> str:
    """The bytes of each card, for people or as JSON."""
    card = card or DEFAULT_CARD
    found = estimate_vllm(facts, settings, card=card)
    notes = [NOTE, *facts.warnings]
    if facts.missing:
        notes.append(
            f"the configuration has no {', '.join(facts.missing)}: what depends on it is not known"
        )
    if as_json:
        return json.dumps(_row(found, settings, card, notes, sure=not facts.missing), indent=2)
    return _words(found, settings, card, notes)


def _row(
    found: VllmEstimate, settings: VllmSettings, card: int, notes: list[str], *, sure: bool
) -> dict[str, object]:
    ranks = settings.tensor_parallel
    compute = found.activation + found.non_torch + found.graphs
    one = {"model": found.weights, "context": found.kv_cache, "compute": compute, "output": 0}
    return {
        "buffers": {f"GPU{rank}": one for rank in range(ranks)},
        "needs": {"host": HOST, "devices": [found.total] * ranks},
        "total": HOST + found.total * ranks,
        "sure": sure,
        "notes": notes,
        "gpuMemoryUtilization": found.utilization(card),
        "kvCacheMemoryBytes": found.kv_cache,
        "memFractionStatic": found.static_fraction(card),
    }


def _words(found: VllmEstimate, settings: VllmSettings, card: int, notes: list[str]) -> str:
    parts = (
        ("weights", found.weights),
        ("KV cache", found.kv_cache),
        ("activations", found.activation),
        ("CUDA graphs", found.graphs),
        ("driver and libraries", found.non_torch),
    )
    shown = ", ".join(f"{name} {show_bytes(count)}" for name, count in parts if count)
    lines = [
        f"Each of {settings.tensor_parallel} cards needs {show_bytes(found.total)}"
        f" for {found.tokens} tokens of context ({shown}).",
        f"vLLM: --kv-cache-memory-bytes {found.kv_cache}"
        f" or, on a card of {show_bytes(card)}, --gpu-memory-utilization {found.utilization(card)}.",
        f"SGLang: --mem-fraction-static {found.static_fraction(card)}.",
    ]
    return "\n".join([*lines, *(f"Note: {note}." for note in notes)])
