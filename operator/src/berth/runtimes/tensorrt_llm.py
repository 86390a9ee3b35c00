"""How is TensorRT-LLM run? (``trtllm-serve serve`` with the PyTorch back end, 1.2)"""

from collections.abc import Sequence

from berth.runtimes.base import Api, Job, Launch, Probe, Runtime, Spread, Traits, Way
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

PRICED: FlagMap = {
    "contextLength": flag("--max_seq_len"),
    "parallel": flag("--max_batch_size"),
    "batchSize": flag("--max_num_tokens"),
}
OWNED: FlagMap = {
    "host": flag("--host"),
    "port": flag("--port"),
    "backend": flag("--backend"),
    "beams": flag("--max_beam_width"),
    "memory": flag("--free_gpu_memory_fraction", "--kv_cache_free_gpu_memory_fraction"),
    "parallelism.tensor": flag("--tensor_parallel_size", "--tp_size"),
    "parallelism.pipeline": flag("--pipeline_parallel_size", "--pp_size"),
    "parallelism.expert": flag("--moe_expert_parallel_size", "--ep_size"),
}
FLAGS: FlagMap = {
    **PRICED,
    **OWNED,
    "trustRemoteCode": switch("--trust_remote_code"),
    "chunked": switch("--enable_chunked_prefill"),
    "media": flag("--media_io_kwargs", kind="json"),
}
UNPRICED = (
    "--config", "--extra_llm_api_options", "--context_parallel_size", "--cp_size", "--moe_cluster_parallel_size",
    "--cluster_size", "--gpus_per_node",
)  # fmt: skip
"""The first two name a file that overrides what was passed."""
COORDINATION = ("--metadata_server_config_file", "--server_role", "--disagg_cluster_uri")


class TensorRtLlm(Runtime):
    """The runtime ``tensorrt-llm``. Weight and cache types are the checkpoint's own."""

    traits = Traits(
        name="tensorrt-llm",
        known_keys=frozenset({"batchSize"}),
        flags=FLAGS,
        priced=frozenset(PRICED),
        owned=frozenset(OWNED),
        unpriced=UNPRICED,
        coordination=COORDINATION,
        code=("--trust_remote_code", "--custom_module_dirs", "--custom_tokenizer"),
        revision=("--revision",),
        formats=frozenset({"safetensors"}),
        probes=(Probe.CHAT,),
        apis=frozenset({Api.CHAT, Api.COMPLETIONS}),
        spread=Spread(kinds=frozenset({"tensor", "pipeline", "expert"})),
        versions={"tensorrt-llm": package("tensorrt_llm"), **gpu_stack()},
        has_rank_env=False,
    )

    def ways(self, job: Job) -> Sequence[Way]:
        """One way, on the GPUs of one node."""
        return [card_way(job, card_settings(self.traits, job, COUNT_READERS, {"auto": "auto"}))]

    def command(self, settings: CardSettings, launch: Launch) -> list[str]:
        """``trtllm-serve`` with everything that was priced."""
        found, sizes, ranks = settings.found, settings.sizes, settings.ranks
        beside = found.total - found.kv_cache
        left = tuple(max(card - beside, found.kv_cache) for card in launch.cards)
        values = {
            "host": launch.host,
            "port": launch.port,
            "backend": "pytorch",
            "beams": 1,
            "contextLength": sizes.context,
            "parallel": sizes.sequences,
            "batchSize": sizes.batched_tokens,
            # A share of what is free once weights and buffers are there, not of the card.
            "memory": share(found.kv_cache, left),
            "parallelism.tensor": ranks.tensor,
            "parallelism.pipeline": ranks.pipeline,
            "parallelism.expert": ranks.expert if ranks.expert > 1 else None,
        }
        words = ["trtllm-serve", "serve", launch.model, *priced_flags(FLAGS, settings, values)]
        return compose(self.traits, words, launch)
