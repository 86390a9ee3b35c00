"""What does an architecture's name add to what its header says?

Rules that llama.cpp (builds 11434 to 11669) holds in code, not in the file: which layers slide, which are
recurrent, which keep no cache. Source: ``src/models/*.cpp`` and ``llama_model::create_memory`` there.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Which layers slide when the header has no pattern of its own: layer i does unless i mod period = period − 1
    (``dense_first``: unless i mod period = 0). ``always``: the window is there without the key, of ``width``.
    """

    period: int
    dense_first: bool = False
    width: int = 0


WINDOWS: dict[str, Window] = {
    "afmoe": Window(4),
    "cohere2": Window(4),
    "cohere2moe": Window(4, dense_first=True),
    "exaone-moe": Window(4, width=128),
    "exaone4": Window(4, width=4096),
    "gemma-embedding": Window(6),
    "gemma2": Window(2, width=4096),
    "gemma3": Window(6),
    "gemma3n": Window(5),
    "gemma4": Window(0),
    "gpt-oss": Window(2),
    "granite-swa": Window(0),
    "laguna": Window(4, dense_first=True),
    "lfm2": Window(1),
    "llama4": Window(4, width=8192),
    "maple": Window(0),
    "mellum": Window(4),
    "mimo2": Window(0),
    "modern-bert": Window(3, dense_first=True),
    "muse-glimmer": Window(4),
    "olmo2": Window(4),
    "plamo3": Window(8),
    "smallthinker": Window(4, dense_first=True),
    "spark2.5": Window(0),
    "step35": Window(0),
}
"""Architectures with sliding windows. Any other ignores the key (phi3 does)."""

WINDOW_BLOCKS = {"exaone4": 64}
"""Of these only the model with so many blocks slides, whatever its header says."""

FIXED_WINDOW = frozenset({"llama4", "smallthinker"})
"""Their window is a constant of the code; the key only turns it off with 0."""

ENCODERS = frozenset(
    {
        "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert", "eurobert",
        "modern-bert", "gemma-embedding", "wavtokenizer-dec", "dream", "llada", "llada-moe", "rnd1", "clef",
    }
)  # fmt: skip
"""No cache at all: the whole batch sees itself."""

ENCODER_DECODERS = frozenset({"t5"})
"""Their encoder's rows are all outputs, and its embeddings are kept beside the logits."""

NO_OUTPUT = frozenset(
    {
        "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert", "eurobert",
        "modern-bert", "wavtokenizer-dec",
    }
)  # fmt: skip
"""Without an output matrix, and without a copy of the embedding in its place."""

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
BY_KV_HEADS = frozenset(
    {
        "jamba",
        "plamo2",
        "granitehybrid",
        "lfm2",
        "lfm2moe",
        "kimi-linear",
        "bailingmoe3",
        "kimi-k3",
        "glm5-next",
    }
)
"""Hybrids whose layers without key-value heads are recurrent."""
BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
"""Hybrids whose every n-th layer attends; the number is the default of ``full_attention_interval``."""
NEMOTRON = frozenset({"nemotron_h", "nemotron_h_moe"})
"""Hybrids of three kinds of layer: recurrent without key-value heads and feed-forward, attention without
feed-forward, feed-forward alone."""
BOTH = frozenset({"falcon-h1"})
"""Every layer attends and is recurrent."""

HYBRID = BY_KV_HEADS | frozenset(BY_INTERVAL) | NEMOTRON | BOTH

SHARED_KV = {"gemma3n": 20, "gemma4": 0}
"""Late layers read an earlier layer's cache. gemma3n: the first 20 layers own one, whatever the header says."""

INDEXED = frozenset(
    {
        "deepseek32",
        "glm-dsa",
        "glm5-next",
        "deepseek4",
        "dots3note",
        "minimax-m3",
        "hy_v4",
        "qwen4exp",
    }
)
"""Sparse attention with caches beyond K and V, which are bounded here, not followed."""

FOLLOWED = frozenset(
    {
        "llama", "deci", "baichuan", "falcon", "grok", "gpt2", "gptj", "gptneox", "mpt", "starcoder", "refact",
        "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "bloom", "stablelm", "qwen",
        "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "qwen3next", "qwen35",
        "qwen35moe", "phi2", "phi3", "phimoe", "plamo", "plamo2", "codeshell", "orion", "internlm2", "minicpm",
        "minicpm3", "gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "gemma-embedding", "starcoder2", "mamba",
        "mamba2", "jamba", "falcon-h1", "xverse", "command-r", "cohere2", "dbrx", "olmo", "olmo2", "olmoe",
        "openelm", "arctic", "deepseek", "deepseek2", "chatglm", "glm4", "glm4moe", "bitnet", "t5", "t5encoder",
        "jais", "nemotron", "nemotron_h", "nemotron_h_moe", "exaone", "exaone4", "exaone-moe", "rwkv6",
        "rwkv6qwen2", "rwkv7", "arwkv7", "granite", "granitemoe", "granitehybrid", "chameleon", "plm",
        "bailingmoe", "bailingmoe2", "dots1", "arcee", "ernie4_5", "ernie4_5-moe", "hunyuan-moe", "hunyuan-dense",
        "smollm3", "gpt-oss", "lfm2", "lfm2moe", "dream", "llada", "llada-moe", "smallthinker", "seed_oss",
        "grovemoe", "apertus", "minimax-m2", "mistral3", "mistral4", "llama4", "afmoe", "cogvlm", "rnd1",
        "pangu-embedded", "modern-bert", "kimi-linear", "minimax-01", "mimo2", "step35", "llama-embed",
        "neo-bert", "eurobert", "plamo3", "mellum", "talkie", "maincoder", "nanbeige",
    }
)  # fmt: skip
"""Architectures whose cache follows the rules of this package. Any other is estimated as unsure."""
