"""Which flags of ``vllm serve`` does Berth write, price, or refuse? (vLLM 0.33)"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from berth.estimator.vllm import VllmSettings
from berth.runtimes.flags import FlagMap, flag, read_flags, switch

PRICED: FlagMap = {
    "contextLength": flag("--max-model-len"),
    "parallel": flag("--max-num-seqs"),
    "batchSize": flag("--max-num-batched-tokens"),
    "kvCacheType": flag("--kv-cache-dtype"),
    "dtype": flag("--dtype"),
    "block": flag("--block-size"),
    "eager": switch("--enforce-eager", off=("--no-enforce-eager",)),
}
OWNED: FlagMap = {
    "model": flag("--model"),
    "name": flag("--served-model-name"),
    "host": flag("--host"),
    "port": flag("--port"),
    "memory": flag("--gpu-memory-utilization", "--device-memory-utilization"),
    "cache": flag("--kv-cache-memory-bytes"),
    "parallelism.tensor": flag("--tensor-parallel-size", "-tp"),
    "parallelism.pipeline": flag("--pipeline-parallel-size", "-pp"),
    "parallelism.data": flag("--data-parallel-size", "-dp"),
    "parallelism.expert": switch(
        "--enable-expert-parallel", "-ep", off=("--no-enable-expert-parallel",)
    ),
    "drain": flag("--shutdown-timeout"),
}
OTHER: FlagMap = {
    "prefixCache": switch("--enable-prefix-caching", off=("--no-enable-prefix-caching",)),
    "trustRemoteCode": switch("--trust-remote-code", off=("--no-trust-remote-code",)),
    "compilation": flag("--compilation-config", kind="json"),
    "chatTemplateKwargs": flag("--default-chat-template-kwargs", kind="json"),
}
FLAGS: FlagMap = {**PRICED, **OWNED, **OTHER}

COORDINATION = (
    "--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless", "--data-parallel-rank",
    "-dpn", "--data-parallel-start-rank", "-dpr", "--data-parallel-size-local", "-dpl", "--data-parallel-address",
    "-dpa", "--data-parallel-rpc-port", "-dpp", "--data-parallel-backend", "-dpb", "--distributed-executor-backend",
)  # fmt: skip
UNPRICED = (
    "--cpu-offload-gb", "--cpu-offload-params", "--offload-backend", "--offload-params", "--kv-offloading-size",
    "--kv-offloading-backend", "--kv-transfer-config", "--speculative-config", "-sc", "--spec-model", "--enable-lora",
    "--lora-modules", "--max-loras", "--max-cpu-loras", "--max-lora-rank", "--mm-shm-cache-max-object-size-mb",
    "--mm-processor-cache-gb", "--mm-ipc-gpu-memory-gb", "--decode-context-parallel-size", "-dcp",
    "--prefill-context-parallel-size", "-pcp", "--quantization", "-q", "--hf-overrides", "--config",
    "--num-gpu-blocks-override", "--api-key",
)  # fmt: skip
"""``--config`` reads flags out of a file that nobody here sees; ``--api-key`` would shut the agent's probes out."""


def _kv_bytes(text: str) -> int:
    if text == "auto":
        return 0
    if text in {"bfloat16", "float16"}:
        return 2
    if text.startswith("fp8"):
        return 1
    raise ValueError("only auto, bfloat16, float16 and fp8 types have a known size")


def _length(text: str) -> int:
    """A length such as 32768, 32k (thousands) or 32K (1024)."""
    factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}.get(text[-1:], 1)
    return int(text[:-1]) * factor if factor > 1 else int(text)


def read_priced(key: str, settings: VllmSettings, value: Any) -> VllmSettings:
    """The settings with one literal taken over. Raises ValueError."""
    match key:
        case "contextLength":
            return replace(settings, context=_length(value))
        case "parallel":
            return replace(settings, sequences=int(value))
        case "batchSize":
            return replace(settings, batched_tokens=_length(value))
        case "kvCacheType":
            return replace(settings, kv_bytes=_kv_bytes(value))
        case "block":
            return replace(settings, block=int(value))
        case "eager":
            return replace(settings, graphs=not value)
        case "parallelism.tensor":
            return replace(settings, tensor_parallel=int(value))
        case "parallelism.pipeline":
            return replace(settings, pipeline_parallel=int(value))
    return settings


READERS: Mapping[str, Any] = {
    key: (lambda settings, value, key=key: read_priced(key, settings, value)) for key in PRICED
}


def parse(words: Sequence[str], base: VllmSettings | None = None) -> VllmSettings:
    """The settings of a pasted ``vllm serve`` command line. Raises ValueError naming the flag."""
    settings = base or VllmSettings()
    for one in read_flags(FLAGS, words):
        try:
            settings = read_priced(one.key or "", settings, one.value)
        except ValueError as err:
            raise ValueError(f"{' '.join(one.words)}: {err}") from err
    return settings
