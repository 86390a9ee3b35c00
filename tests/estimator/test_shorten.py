"""Does a graph without the middle of its runs take what the whole one takes?"""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from berth.estimator import Device, Settings
from berth.estimator.effective import effective
from berth.estimator.graph.layout import layout, layout_whole
from berth.estimator.placing import place
from berth.estimator.same import first_of
from berth.estimator.shape import shape_of
from berth.facts import Facts
from estimator.models import models
from estimator.test_engine import measured

MODELS = {**models(), **measured()[0]}
EACH = 2


def asked(rng: random.Random, facts: Facts) -> tuple[Settings, list[Device]]:
    """Settings and devices as a seed has them."""
    blocks = facts.layers or 1
    flash = rng.choice(["on", "on", "off"])
    key = rng.choice(["f16", "q8_0", "q4_0", "f32", "bf16"])
    settings = Settings(
        context=rng.choice([0, 300, 4096, 5000, 32768, rng.randint(300, 100_000)]),
        parallel=rng.choice([-1, 1, 2, 3, 6]),
        kv_unified=rng.choice([None, True, False]),
        ubatch=rng.choice([32, 64, 512, 1024, 2048]),
        cache_type_k=key,
        cache_type_v="f16" if flash == "off" else key,
        flash_attn=flash,
        swa_full=rng.random() < 0.1,
    )
    count = rng.choice([0, 1, 1, 2])
    devices = [Device(f"GPU{at}", rules=rng.choice(["cuda", "rpc"])) for at in range(count)]
    if rng.random() < 0.5:
        settings = replace(
            settings, n_gpu_layers=rng.randint(0, blocks), kv_offload=bool(count % 2)
        )
    return settings, devices


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_shortened_graph_takes_what_the_whole_one_takes(
    name: str,
) -> None:
    facts, rng = MODELS[name], random.Random(name)
    for _ in range(EACH):
        settings, devices = asked(rng, facts)
        shape = shape_of(facts)
        parts: tuple[Any, ...] = (
            facts, shape, settings, effective(shape, settings), place(shape.blocks, settings, devices),
        )  # fmt: skip
        assert layout(*parts) == layout_whole(*parts), settings


def test_facts_that_say_the_same_are_worked_out_once() -> None:
    facts = models()["llama-3.1-8b-q4km"]
    anew = Facts.from_json(json.loads(json.dumps(facts.to_json())))
    assert first_of(replace(anew, name="another", file_bytes=(1,))) is first_of(facts)
    flag = replace(facts, hparams={**facts.hparams, "attention.causal": True})
    number = replace(facts, hparams={**facts.hparams, "attention.causal": 1})
    assert first_of(flag) is not first_of(number)
