"""What does a Hugging Face ``config.json`` say, under the names that GGUF headers use?

Text configurations nested in multimodal ones are found; the keys are those of ``transformers``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from berth.facts import Value
from berth.headers.keep import can_keep

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")

_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("block_count", ("num_hidden_layers", "n_layer", "num_layers", "n_layers")),
    ("embedding_length", ("hidden_size", "n_embd", "d_model")),
    ("feed_forward_length", ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")),
    (
        "context_length",
        ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx"),
    ),
    ("vocab_size", ("vocab_size", "padded_vocab_size")),
    ("attention.head_count", ("num_attention_heads", "n_head", "num_heads")),
    ("attention.head_count_kv", ("num_key_value_heads", "multi_query_group_num", "num_kv_heads")),
    ("attention.key_length", ("head_dim", "kv_channels", "attention_head_dim")),
    ("attention.sliding_window", ("sliding_window", "sliding_window_size", "attention_chunk_size")),
    ("attention.kv_lora_rank", ("kv_lora_rank",)),
    ("attention.q_lora_rank", ("q_lora_rank",)),
    ("attention.shared_kv_layers", ("num_kv_shared_layers",)),
    ("rope.dimension_count", ("qk_rope_head_dim",)),
    ("qk_nope_head_dim", ("qk_nope_head_dim",)),
    ("v_head_dim", ("v_head_dim",)),
    ("expert_count", ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")),
    (
        "expert_used_count",
        ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts"),
    ),
    ("expert_feed_forward_length", ("moe_intermediate_size", "expert_intermediate_size")),
    (
        "expert_shared_feed_forward_length",
        ("shared_expert_intermediate_size", "shared_intermediate_size"),
    ),
    ("full_attention_interval", ("full_attention_interval",)),
    ("ssm.conv_kernel", ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "d_conv")),
    ("ssm.state_size", ("mamba_d_state", "ssm_state_size", "state_size", "linear_key_head_dim")),
    ("ssm.group_count", ("mamba_n_groups", "n_groups", "linear_num_key_heads")),
    (
        "ssm.time_step_rank",
        ("mamba_n_heads", "mamba_num_heads", "linear_num_value_heads", "mamba_dt_rank"),
    ),
    ("ssm.head_dim", ("mamba_d_head", "mamba_head_dim", "linear_value_head_dim")),
    ("nextn_predict_layers", ("num_nextn_predict_layers", "mtp_num_hidden_layers")),
    ("shortconv.l_cache", ("conv_L_cache",)),
    ("tie_word_embeddings", ("tie_word_embeddings",)),
    ("dtype", ("torch_dtype", "dtype")),
)
_NEEDED = ("block_count", "embedding_length", "attention.head_count", "context_length")
_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "recurrent": "state",
}


@dataclass(frozen=True, slots=True)
class Config:
    """What one ``config.json`` says."""

    architecture: str
    quantisation: str
    vocabulary: int
    chat_template: bool
    hparams: dict[str, Value]
    missing: tuple[str, ...]


def read_config(config: Mapping[str, Any]) -> Config:
    """The text model's numbers; keys that are absent or of another type are left out and named."""
    text = _text_config(config)
    hparams = _hparams(text, config)
    _window(text, hparams)
    missing = tuple(key for key in _NEEDED if key not in hparams)
    vocabulary = hparams.get("vocab_size", 0)
    return Config(
        architecture=_architecture(config, text),
        quantisation=_quantisation(config, text),
        vocabulary=vocabulary if isinstance(vocabulary, int) else 0,
        chat_template=False,
        hparams=hparams,
        missing=missing,
    )


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _NESTED:
        inner = config.get(name)
        if isinstance(inner, dict) and any(
            key in inner for key in ("hidden_size", "text_config", "num_hidden_layers")
        ):
            return _text_config(inner)
    return config


def _hparams(text: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for ours, theirs in _NAMES:
        value = next(
            (row[key] for row in (text, config) for key in theirs if row.get(key) is not None), None
        )
        if (
            isinstance(value, list)
            and value
            and all(isinstance(member, int | float) for member in value)
        ):
            value = tuple(value[:1024])
        if isinstance(value, int | float | str | tuple) and can_keep(value):
            found[ours] = value
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, list) and kinds:
        found["layer_kinds"] = tuple(_KINDS.get(str(kind), "full") for kind in kinds[:1024])
    return found


def _window(text: Mapping[str, Any], hparams: dict[str, Value]) -> None:
    """Drops a sliding window that the model says it does not use, and writes a period as layer kinds."""
    if text.get("use_sliding_window") is False:
        hparams.pop("attention.sliding_window", None)
    period = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern")
    layers = hparams.get("block_count")
    if (
        "layer_kinds" in hparams
        or not isinstance(period, int)
        or not isinstance(layers, int)
        or period < 2
    ):
        return
    kinds = ("sliding",) * (period - 1) + ("full",)
    hparams["layer_kinds"] = tuple(kinds[layer % period] for layer in range(min(layers, 1024)))


def _architecture(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    for row in (text, config):
        names = row.get("architectures")
        if isinstance(names, list) and names and isinstance(names[0], str):
            return names[0][:128]
    model_type = text.get("model_type", config.get("model_type", ""))
    return model_type[:128] if isinstance(model_type, str) else ""


def _quantisation(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """The method's name and bits as the checkpoint says: ``awq-4``, ``fp8``, ``compressed-tensors``, ``mxfp4``."""
    said = (
        config.get("quantization_config")
        or text.get("quantization_config")
        or config.get("compression_config")
    )
    if not isinstance(said, dict):
        return ""
    method = (
        said.get("quant_method")
        or said.get("quant_algo")
        or ("modelopt" if "quant_algo" in said else "")
    )
    bits = said.get("bits") or said.get("w_bit")
    if said.get("load_in_4bit"):
        bits = 4
    name = str(method or "unknown")[:40].lower()
    return f"{name}-{bits}" if isinstance(bits, int) else name
