"""Does each engine get exactly the flags that it has, and that were priced?"""

import json
from dataclasses import replace
from typing import Any

import pytest

from berth.api.profile import ProfileFields
from berth.runtimes.base import Job, Launch, Member, Ranks, Runtime
from berth.runtimes.contract import facts
from berth.runtimes.flags import read_flags
from berth.runtimes.registry import registry
from runtimes.engine_flags import FOLDER, known_flags

GIB = 1 << 30
CARD = 80 * GIB
LAUNCH = Launch(model="/models/m", name="org/m", port=8000)
ENGINES = ("llamacpp", "vllm", "sglang", "tensorrt-llm", "max")


ALONE = Ranks()


def engine(name: str) -> Runtime:
    return registry().get(name)


def job(name: str, *, ranks: Ranks = ALONE, hardware: str = "cuda", **fields: Any) -> Job:
    form = "gguf" if name == "llamacpp" else "safetensors"
    profile = ProfileFields.model_validate({"contextLength": 4096, **fields})
    return Job(
        facts(form), profile, hardware=hardware, name="org/m", asked=frozenset(fields), ranks=ranks
    )


def words(name: str, one: Job, cards: int = 1) -> list[str]:
    launch = replace(LAUNCH, cards=(CARD,) * cards, args=tuple(one.fields.args or ()))
    return engine(name).command(engine(name).ways(one)[0].settings, launch)


def errors(name: str, one: Job) -> list[str]:
    return [f.text for f in engine(name).check(one) if f.level == "error"]


# Against what the engines themselves say of their flags.


@pytest.mark.parametrize("name", ENGINES)
def test_every_flag_of_the_map_is_one_that_the_engine_has(name: str) -> None:
    known, traits = known_flags(name), engine(name).traits
    mapped = {n for one in traits.flags.values() for n in one.every}
    other = {*traits.unpriced, *traits.coordination, *traits.code, *traits.revision}
    assert sorted((mapped | other) - set(known)) == []


@pytest.mark.parametrize("name", ENGINES)
def test_flags_take_a_value_or_not_as_the_engine_says(name: str) -> None:
    known, traits = known_flags(name), engine(name).traits
    wrong = {
        n: known[n]
        for one in traits.flags.values()
        for n in one.names
        if n in known and (known[n] == "value") != (one.kind != "switch")
    }
    assert wrong == {}


@pytest.mark.parametrize("name", ENGINES)
def test_where_the_flags_are_from_is_written_down(name: str) -> None:
    kept = json.loads((FOLDER / f"{name}.json").read_text())
    assert kept["engine"] == name
    assert all(kept[key] for key in ("version", "source", "how"))
    assert len(kept["flags"]) > 30


# vLLM.


def test_vllm_gets_the_planners_bytes_and_nothing_by_default() -> None:
    one = job("vllm", parallel=4, drain={"timeout": "60s"})
    found = engine("vllm").ways(one)[0].settings.found
    share = -(-found.total * 10_000 // CARD) / 10_000
    assert words("vllm", one) == [
        "vllm", "serve", "/models/m", "--served-model-name", "org/m", "--host", "0.0.0.0", "--port", "8000",
        "--dtype", "bfloat16", "--kv-cache-dtype", "auto", "--max-model-len", "4096", "--max-num-seqs", "4",
        "--max-num-batched-tokens", "2048", "--kv-cache-memory-bytes", str(4 * 4096 * 32 * 2 * 8 * 128 * 2),
        "--gpu-memory-utilization", str(share), "--no-enforce-eager", "--enable-prefix-caching",
        "--tensor-parallel-size", "1", "--pipeline-parallel-size", "1", "--data-parallel-size", "1",
        "--no-enable-expert-parallel", "--shutdown-timeout", "60",
    ]  # fmt: skip
    assert share < 0.9


def test_vllm_on_a_cpu_claims_host_memory_and_no_share_of_a_card() -> None:
    one = job("vllm", hardware="cpu")
    way = engine("vllm").ways(one)[0]
    line = engine("vllm").command(way.settings, LAUNCH)
    assert (way.devices, way.estimate.devices) == (0, ())
    assert way.estimate.host.total > way.settings.found.weights + way.settings.found.kv_cache
    assert "--gpu-memory-utilization" not in line
    assert "--enforce-eager" in line


def test_an_fp8_cache_is_half_and_said_so() -> None:
    half, whole = (
        engine("vllm").ways(job("vllm", **more))[0].settings
        for more in ({"kvCacheType": {"k": "fp8", "v": "fp8"}}, {})
    )
    assert half.found.kv_cache * 2 == whole.found.kv_cache
    assert (half.kv_type, whole.kv_type) == ("fp8", "auto")


@pytest.mark.parametrize(
    ("args", "word"),
    [
        pytest.param(["--gpu_memory_utilization=0.9"], "--gpu-memory-utilization", id="its other spelling"),
        pytest.param(["--gpu-mem", "0.9"], "write flags whole", id="an abbreviation"),
        pytest.param(["-tp", "2"], "-tp", id="a short name"),
        pytest.param(["--kv-transfer-config.kv_role", "x"], "--kv-transfer-config", id="a dotted part of one"),
        pytest.param(["--node-rank=1"], "where they meet", id="a flag of the group"),
        pytest.param(["--revision", "main"], "{revision}", id="a mutable revision"),
    ],
)  # fmt: skip
def test_what_would_slip_past_the_price_is_refused(args: list[str], word: str) -> None:
    assert any(word in text for text in errors("vllm", job("vllm", args=args)))


def test_other_literals_pass() -> None:
    one = job("vllm", args=["--reasoning-parser", "x", "--compilation-config", '{"mode":3}'])
    assert errors("vllm", one) == []
    assert words("vllm", one)[-4:] == [
        "--reasoning-parser",
        "x",
        "--compilation-config",
        '{"mode":3}',
    ]


def test_a_literal_batch_is_priced_and_passed_once() -> None:
    one = job("vllm", args=["--max-num-batched-tokens", "16k"])
    assert engine("vllm").ways(one)[0].settings.sizes.batched_tokens == 16000
    assert words("vllm", one).count("--max-num-batched-tokens") == 1


def test_pipeline_stages_share_the_layers() -> None:
    one, two = (
        engine("vllm").ways(job("vllm", ranks=ranks))[0].settings.found
        for ranks in (Ranks(), Ranks(pipeline=2, hosts=2))
    )
    assert two.kv_cache * 2 == one.kv_cache
    assert one.weights / 2 < two.weights < one.weights


@pytest.mark.parametrize(
    ("name", "ranks", "want"),
    [
        pytest.param(
            "vllm", Ranks(tensor=2, pipeline=2, hosts=2),
            ["--nnodes", "2", "--node-rank", "1", "--master-addr", "head", "--master-port", "25000", "--headless"],
            id="vLLM over two nodes is one world",
        ),
        pytest.param(
            "vllm", Ranks(data=4, hosts=2),
            ["--data-parallel-size-local", "2", "--data-parallel-start-rank", "2", "--data-parallel-address", "head",
             "--data-parallel-rpc-port", "25000", "--headless"],
            id="vLLM replicas are as many on each node",
        ),
        pytest.param(
            "sglang", Ranks(tensor=4, hosts=2),
            ["--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "head:25000"],
            id="SGLang",
        ),
    ],
)  # fmt: skip
def test_members_of_a_group(name: str, ranks: Ranks, want: list[str]) -> None:
    way = engine(name).ways(job(name, ranks=ranks))[0]
    assert (way.hosts, way.devices) == (2, engine(name).world_size(ranks) // 2)
    line = engine(name).node_command(way.settings, LAUNCH, Member(1, 2, "head"))
    assert line[-len(want) :] == want
    assert {one.name for one in read_flags({}, line[2:]) if one.name.startswith("--")} <= set(
        known_flags(name)
    )


def test_the_head_of_a_group_has_the_api() -> None:
    way = engine("vllm").ways(job("vllm", ranks=Ranks(tensor=2, hosts=2)))[0]
    assert "--headless" not in engine("vllm").node_command(
        way.settings, LAUNCH, Member(0, 2, "head")
    )


# The others.


def test_sglang_gets_the_share_of_weights_and_cache() -> None:
    one = job("sglang")
    found = engine("sglang").ways(one)[0].settings.found
    line = words("sglang", one)
    share = -(-(found.weights + found.kv_cache) * 10_000 // CARD) / 10_000
    assert line[:5] == ["python3", "-m", "sglang.launch_server", "--model-path", "/models/m"]
    assert line[line.index("--mem-fraction-static") + 1] == str(share)
    assert line[line.index("--max-total-tokens") + 1] == "4096"
    assert "--enable-metrics" in line


def test_sglang_replicas_stay_on_one_node() -> None:
    assert "one node" in errors("sglang", job("sglang", ranks=Ranks(data=2, hosts=2)))[0]


def test_tensorrt_llm_gets_the_share_of_what_the_weights_leave() -> None:
    one = job("tensorrt-llm")
    found = engine("tensorrt-llm").ways(one)[0].settings.found
    line = words("tensorrt-llm", one)
    share = float(line[line.index("--free_gpu_memory_fraction") + 1])
    assert share * (CARD - (found.total - found.kv_cache)) >= found.kv_cache
    assert (share - 0.0002) * (CARD - (found.total - found.kv_cache)) < found.kv_cache


def test_max_is_told_its_devices() -> None:
    line = words("max", job("max", ranks=Ranks(tensor=2)), cards=2)
    assert line[line.index("--devices") + 1] == "gpu:0,1"


def test_a_command_claims_what_its_profile_says() -> None:
    fields = {"command": ["serve", "{model}"], "memory": {"peak": "6Gi"}}
    gpu = engine("command").ways(job("command", ranks=Ranks(tensor=2), **fields))[0].estimate
    cpu = engine("command").ways(job("command", hardware="cpu", **fields))[0].estimate
    assert ([size for _, size in gpu.devices], gpu.host.total) == ([3 * GIB, 3 * GIB], GIB)
    assert (cpu.devices, cpu.host.total) == ((), 6 * GIB)


def test_without_a_peak_nobody_can_say_what_a_command_takes() -> None:
    assert "memory.peak" in errors("command", job("command", command=["serve", "{model}"]))[0]


def test_a_command_that_does_not_take_the_model_is_refused() -> None:
    told = errors("vllm", job("vllm", command=["vllm", "serve", "org/other"]))
    assert any("{model}" in text for text in told)
