"""Do the examples of docs/explanation/memory.md come out, by pencil and by the estimator?"""

import re
from pathlib import Path

import pytest

from bench.fit_table import CONTEXT, rules
from berth.estimator import Device, Settings, estimate
from berth.units import GiB, show_bytes
from estimator.models import models

ROOT = Path(__file__).parents[2]

MiB = 1 << 20
LLAMA = models()["llama-3.1-8b-q4km"]


def test_the_cache_of_an_8b_llama_is_four_gib() -> None:
    found = estimate(LLAMA, Settings(context=32768, parallel=1))
    assert found.buffers["CPU"].context == 2 * 32 * 8 * 128 * 2 * 32768 == 4 << 30


def test_the_compute_buffers_of_an_8b_llama_by_pencil() -> None:
    found = estimate(LLAMA, Settings(context=32768, parallel=1), devices=[Device()]).buffers
    inputs = 8 * 4096 * 512 + 24 * 512 + 32768 * 512 * 2 + 16 * 512
    card = inputs + 4 * 512 * (3 * 4096 + 3 * 14336) - 4 * 4096 * 512
    host = inputs + 8 * 4096 * 512
    assert (card, host) == (155_209_728, 67_129_344)
    assert (found["GPU0"].compute, found["CPU"].compute) == (155_203_712, 67_127_328)
    assert found["GPU0"].compute == pytest.approx(card, rel=0.0001)


def test_sliding_layers_of_gemma3_by_pencil() -> None:
    found = estimate(models()["gemma3-4b-q4km"], Settings(context=16384, parallel=1))
    slides = [layer for layer in range(34) if layer % 6 != 5]
    row = 2 * 4 * 256 * 2
    want = (34 - len(slides)) * 16384 * row + len(slides) * (1024 + 512) * row
    assert found.kinds.kv_cache == want


def test_the_latent_cache_of_deepseek_by_pencil() -> None:
    found = estimate(models()["deepseek-v3-q4km"], Settings(context=32768, parallel=1))
    assert found.kinds.kv_cache == 61 * 576 * 2 * 32768 == 2196 * MiB


def test_what_others_rules_make_of_the_same_header_is_as_the_page_says() -> None:
    page = (ROOT / "docs/explanation/memory.md").read_text()
    said = re.findall(r"^\| [^|]+ \| [^|]+ \| ([\d.]+ GiB|–) \|$", page, re.MULTILINE)
    found = [rule(LLAMA, CONTEXT) / GiB for rule in rules().values()]
    assert said == [f"{gib:.2f} GiB" if gib else "–" for gib in found]
    own = estimate(LLAMA, Settings(context=CONTEXT, parallel=1)).kinds.kv_cache
    assert f"`berth fit` on its file says `{show_bytes(own)}`" in page
