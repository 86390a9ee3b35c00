"""With which settings is an engine started?

The field names are Berth's; `runtimes.llamacpp` holds the one table that maps them to llama-server's flags,
both ways, so that what is priced is what is launched. The defaults here are llama-server's own (builds
11434 to 11669), so that a pasted command line is priced as it stands.
"""

from dataclasses import dataclass

AUTO = -1


@dataclass(frozen=True, slots=True)
class Settings:
    """llama-server's settings, as far as they move a byte.

    ``context`` is the engine's ``-c``: the tokens of all slots together, 0 for the trained length.
    ``parallel`` is the number of slots; AUTO is four slots over one unified cache.
    ``n_gpu_layers`` counts the output as a layer; AUTO is all that there are.
    ``cache_ram_mib`` is the cap of saved prompts in host memory; -1 has no cap.
    """

    context: int = 0
    parallel: int = AUTO
    kv_unified: bool | None = None
    kv_unified_per_slot: int = 0
    batch: int = 2048
    ubatch: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    swa_full: bool = False
    embeddings: bool = False
    pooling: str = ""
    """``none``, ``mean``, ``cls``, ``last`` or ``rank``; empty is what the header says."""
    n_gpu_layers: int = AUTO
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    n_cpu_ffn: int = 0
    moe_cache_mib: int = 0
    override_tensor: tuple[str, ...] = ()
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    kv_offload: bool = True
    op_offload: bool = True
    repack: bool = True
    no_host: bool = False
    load_mode: str = "auto"
    cache_ram_mib: int = 8192
    ctx_checkpoints: int = 32
    threads: int = 0
    mmproj_offload: bool = True
    cache_type_k_draft: str = "f16"
    cache_type_v_draft: str = "f16"
    n_gpu_layers_draft: int = AUTO
    spec_types: tuple[str, ...] = ()
    draft_max: int = 3
    build: int = 0
    """The engine's build, for rules that changed; 0 is not known, and has those of 11434. It is no flag."""

    @property
    def slots(self) -> int:
        """The number of slots that AUTO stands for, or the number asked for."""
        return 4 if self.parallel == AUTO else max(self.parallel, 1)

    @property
    def unified(self) -> bool:
        """Whether one cache is shared by all slots: as asked, else only when slots are AUTO."""
        return self.parallel == AUTO if self.kv_unified is None else self.kv_unified


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator as the engine sees it.

    ``rules``: ``cuda`` rounds buffers to 128 bytes, pads quantised rows to 512 elements, has pinned host
    buffers and takes over large matrix products of host layers; ``rpc`` does none of it.
    ``memory`` in bytes decides the share of layers where ``tensor_split`` is not given; 0 is unknown.
    """

    name: str = "GPU0"
    memory: int = 0
    rules: str = "cuda"

    @property
    def alignment(self) -> int:
        """To how many bytes a tensor is rounded."""
        return 128 if self.rules == "cuda" else 32


@dataclass(frozen=True, slots=True)
class Host:
    """The host's CPU, as far as it moves a byte: which types it repacks."""

    cpu: str = "avx2"

    @property
    def repacks(self) -> frozenset[str]:
        """Types of which a repacked copy is made (ggml's CPU backend, repack.cpp)."""
        base = {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}
        more = {"avx512": {"Q2_K"}, "arm": {"Q8_0", "Q5_K", "Q6_K"}}.get(self.cpu, set())
        return frozenset(base | more)


CPU = "CPU"
CPU_REPACK = "CPU_REPACK"


def round_up(value: int, step: int) -> int:
    """``value`` rounded up to a multiple of ``step``."""
    return -(-value // step) * step
