"""How is SGLang run? (``sglang.launch_server``, 0.5.23)"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from berth.runtimes.base import (
    Api,
    CachePath,
    Counters,
    Finding,
    Job,
    Launch,
    Member,
    Probe,
    Runtime,
    Spread,
    Traits,
    Way,
)  # fmt: skip
from berth.runtimes.cards import (
    COUNT_READERS,
    CardSettings,
    card_settings,
    card_way,
    priced_flags,
    share,
)
from berth.runtimes.flags import FlagMap, flag, switch
from berth.runtimes.template import compose
from berth.runtimes.versions import gpu_stack, package

KV_TYPES = {"auto": "auto", "bf16": "bf16", "fp8": "fp8_e4m3"}
PRICED: FlagMap = {
    "contextLength": flag("--context-length"),
    "parallel": flag("--max-running-requests"),
    "batchSize": flag("--chunked-prefill-size"),
    "kvCacheType": flag("--kv-cache-dtype"),
    "dtype": flag("--dtype"),
}
OWNED: FlagMap = {
    "model": flag("--model-path", "--model"),
    "name": flag("--served-model-name"),
    "host": flag("--host"),
    "port": flag("--port"),
    "memory": flag("--mem-fraction-static"),
    "tokens": flag("--max-total-tokens"),
    "prefill": flag("--max-prefill-tokens"),
    "metrics": switch("--enable-metrics"),
    "parallelism.tensor": flag("--tensor-parallel-size", "--tp-size"),
    "parallelism.pipeline": flag("--pipeline-parallel-size", "--pp-size"),
    "parallelism.data": flag("--data-parallel-size", "--dp-size"),
    "parallelism.expert": flag("--expert-parallel-size", "--ep-size"),
}
FLAGS: FlagMap = {
    **PRICED,
    **OWNED,
    "trustRemoteCode": switch("--trust-remote-code"),
    "overrides": flag("--json-model-override-args", kind="json"),
}
COORDINATION = ("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr", "--nccl-port")
UNPRICED = (
    "--cpu-offload-gb", "--offload-mode", "--offload-group-size", "--enable-hierarchical-cache", "--hicache-size",
    "--hicache-ratio", "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-draft-model",
    "--enable-lora", "--lora-paths", "--max-loaded-loras", "--max-loras-per-batch", "--quantization", "--api-key",
    "--json-model-override-args", "--page-size", "--device", "--attn-cp-size", "--attn-dp-size",
    "--attention-data-parallel-size", "--max-mamba-cache-size", "--enable-unified-memory",
)  # fmt: skip


def _kv_bytes(text: str) -> int:
    if text in {"auto", "bf16", "bfloat16"}:
        return 0 if text == "auto" else 2
    if text.startswith("fp8"):
        return 1
    raise ValueError("only auto, bf16 and fp8 types have a known size")


READERS: Mapping[str, Any] = {
    **COUNT_READERS,
    "kvCacheType": lambda sizes, value: replace(sizes, kv_bytes=_kv_bytes(value)),
    "dtype": lambda sizes, value: sizes,
}


class Sglang(Runtime):
    """The runtime ``sglang``."""

    traits = Traits(
        name="sglang",
        known_keys=frozenset({"kvCacheType", "batchSize"}),
        flags=FLAGS,
        priced=frozenset(PRICED),
        owned=frozenset(OWNED),
        unpriced=UNPRICED,
        coordination=COORDINATION,
        code=("--trust-remote-code",),
        revision=("--revision",),
        formats=frozenset({"safetensors"}),
        probes=(Probe.CHAT,),
        apis=frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.EMBEDDINGS, Api.RERANK, Api.SCORE, Api.CLASSIFY, Api.TOKENIZE}),
        counters=Counters(
            busy=("sglang:num_running_reqs", "sglang:num_queue_reqs"),
            prompt_tokens="sglang:prompt_tokens_total",
            tokens="sglang:generation_tokens_total",
            served=("sglang:num_requests_total",),
        ),
        spread=Spread(kinds=frozenset({"tensor", "pipeline", "data", "expert"}), most_hosts=64),
        versions={"sglang": package("sglang"), **gpu_stack()},
        caches={
            "TRITON_CACHE_DIR": CachePath("triton"),
            "TORCHINDUCTOR_CACHE_DIR": CachePath("inductor"),
            "FLASHINFER_WORKSPACE_BASE": CachePath("flashinfer"),
        },
    )  # fmt: skip

    def ways(self, job: Job) -> Sequence[Way]:
        """One way, on GPUs."""
        return [card_way(job, card_settings(self.traits, job, READERS, KV_TYPES))]

    def check(self, job: Job) -> Sequence[Finding]:
        """Replicas of a group are not supported: they share one node."""
        found = list(super().check(job))
        if job.ranks.data > 1 and job.ranks.hosts > 1:
            text = "sglang keeps its data-parallel replicas on one node; make them replicas of the Model"
            return [Finding("error", text), *found]
        return found

    def command(self, settings: CardSettings, launch: Launch) -> list[str]:
        """``sglang.launch_server`` with everything that was priced."""
        return compose(self.traits, _words(settings, launch), launch)

    def node_command(self, settings: CardSettings, launch: Launch, member: Member) -> list[str]:
        """The same on every node, with its rank and where they meet."""
        words = ["--nnodes", str(member.size), "--node-rank", str(member.rank)]
        words += ["--dist-init-addr", f"{member.head}:{member.init_port}"]
        return [*compose(self.traits, _words(settings, launch), launch), *words]


def _words(settings: CardSettings, launch: Launch) -> list[str]:
    sizes, ranks, found = settings.sizes, settings.ranks, settings.found
    values = {
        "model": launch.model,
        "name": launch.name,
        "host": launch.host,
        "port": launch.port,
        "dtype": settings.dtype,
        "kvCacheType": settings.kv_type,
        "contextLength": sizes.context,
        "parallel": sizes.sequences,
        "batchSize": sizes.batched_tokens,
        "prefill": max(sizes.batched_tokens, sizes.context),
        "tokens": found.tokens,
        "memory": share(found.weights + found.kv_cache, launch.cards),
        "metrics": True,
        "parallelism.tensor": ranks.tensor,
        "parallelism.pipeline": ranks.pipeline,
        "parallelism.data": ranks.data,
        "parallelism.expert": ranks.expert,
    }
    return ["python3", "-m", "sglang.launch_server", *priced_flags(FLAGS, settings, values)]
