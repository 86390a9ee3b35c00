"""vLLM's arithmetic against what it logged in public."""

import pytest

from berth.estimator.vllm import VllmSettings, estimate_vllm, tokens_in
from berth.facts import Facts, TensorGroup

GiB = 1 << 30
LAYERS = ((0, 32),)


def tensor(name: str, *shape: int, blocks: tuple[tuple[int, int], ...] = LAYERS) -> TensorGroup:
    size = 2
    for dimension in shape:
        size *= dimension
    return TensorGroup(name, "BF16", shape, size, blocks)


LLAMA = Facts(
    "safetensors",
    "LlamaForCausalLM",
    vocabulary=128256,
    hparams={
        "block_count": 32, "embedding_length": 4096, "feed_forward_length": 14336, "context_length": 131072,
        "attention.head_count": 32, "attention.head_count_kv": 8, "dtype": "bfloat16",
    },
    tensors=(
        tensor("model.embed_tokens.weight", 128256, 4096, blocks=()),
        tensor("lm_head.weight", 128256, 4096, blocks=()),
        tensor("model.norm.weight", 4096, blocks=()),
        tensor("model.layers.{}.input_layernorm.weight", 4096),
        tensor("model.layers.{}.post_attention_layernorm.weight", 4096),
        tensor("model.layers.{}.self_attn.q_proj.weight", 4096, 4096),
        tensor("model.layers.{}.self_attn.k_proj.weight", 1024, 4096),
        tensor("model.layers.{}.self_attn.v_proj.weight", 1024, 4096),
        tensor("model.layers.{}.self_attn.o_proj.weight", 4096, 4096),
        tensor("model.layers.{}.mlp.gate_proj.weight", 14336, 4096),
        tensor("model.layers.{}.mlp.up_proj.weight", 14336, 4096),
        tensor("model.layers.{}.mlp.down_proj.weight", 4096, 14336),
    ),
)  # fmt: skip


def test_model_loading_of_llama_8b_is_the_logged_14_9889_gib() -> None:
    assert LLAMA.weight_bytes == 16_060_522_496
    found = estimate_vllm(LLAMA, VllmSettings(), card=80 * GiB)
    assert found.weights / GiB == pytest.approx(14.9889, abs=0.0002)


def test_tokens_in_the_logged_budget() -> None:
    assert tokens_in(LLAMA, VllmSettings(), int(56.21 * GiB), card=80 * GiB) == pytest.approx(
        460_496, abs=60
    )


def test_activation_and_graphs_of_llama_8b() -> None:
    found = estimate_vllm(LLAMA, VllmSettings(batched_tokens=8192, sequences=256), card=80 * GiB)
    assert 1.0 < (found.activation + found.graphs) / GiB < 2.2


def test_each_card_holds_its_share() -> None:
    one, four = (
        estimate_vllm(LLAMA, VllmSettings(context=8192, tensor_parallel=ranks), card=80 * GiB)
        for ranks in (1, 4)
    )
    assert four.kv_cache == one.kv_cache // 4
    assert 0.25 * one.weights < four.weights < 0.27 * one.weights


def test_kv_heads_are_repeated_when_there_are_more_cards() -> None:
    eight, sixteen = (
        estimate_vllm(LLAMA, VllmSettings(context=8192, tensor_parallel=ranks), card=80 * GiB)
        for ranks in (8, 16)
    )
    assert eight.kv_cache == sixteen.kv_cache


def test_mla_is_whole_on_every_card() -> None:
    keys = {
        "block_count": 61, "embedding_length": 7168, "attention.head_count": 128, "attention.kv_lora_rank": 512,
        "rope.dimension_count": 64, "context_length": 163840,
    }  # fmt: skip
    model = Facts("safetensors", "DeepseekV3ForCausalLM", hparams=keys)
    one, eight = (
        estimate_vllm(model, VllmSettings(context=32768, tensor_parallel=ranks), card=80 * GiB)
        for ranks in (1, 8)
    )
    assert one.kv_cache == eight.kv_cache == 32768 * 61 * 576 * 2


def test_sliding_layers_keep_a_window() -> None:
    kinds = tuple(("sliding",) * 5 + ("full",)) * 4
    keys = {
        "block_count": 24, "embedding_length": 1024, "attention.head_count": 8, "attention.head_count_kv": 4,
        "attention.key_length": 128, "attention.sliding_window": 512, "layer_kinds": kinds, "context_length": 131072,
    }  # fmt: skip
    model = Facts("safetensors", "Gemma3ForCausalLM", hparams=keys)
    found = estimate_vllm(model, VllmSettings(context=65536, batched_tokens=2048), card=24 * GiB)
    page, blocks = 16 * 4 * 2 * 128 * 2, 65536 // 16 + 5 * (-(-(511 + 2048) // 16) + 1)
    assert found.kv_cache == blocks * 4 * page


def test_the_shares_are_of_the_whole_card_and_rounded_up() -> None:
    found = estimate_vllm(LLAMA, VllmSettings(context=8192), card=80 * GiB)
    assert found.utilization(80 * GiB) * 80 * GiB >= found.total
    assert found.static_fraction(80 * GiB) < found.utilization(80 * GiB)
