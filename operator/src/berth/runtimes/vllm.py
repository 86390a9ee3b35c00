"""How is vLLM run? (``vllm serve``, 0.33)

Its memory is the planner's bytes: the cache is passed to the byte, the share of the card from what was priced.
"""

from collections.abc import Mapping, Sequence

from berth.runtimes.base import (
    Api,
    CachePath,
    Counters,
    Job,
    Launch,
    Member,
    Probe,
    Runtime,
    Spread,
    Traits,
    Way,
)
from berth.runtimes.cards import CardSettings, card_settings, card_way, priced_flags, share
from berth.runtimes.template import compose
from berth.runtimes.versions import gpu_stack, package
from berth.runtimes.vllm_flags import COORDINATION, FLAGS, OWNED, PRICED, READERS, UNPRICED

KV_TYPES = {"auto": "auto", "f16": "float16", "bf16": "bfloat16", "fp8": "fp8"}


class Vllm(Runtime):
    """The runtime ``vllm``."""

    traits = Traits(
        name="vllm",
        hardware=("cuda", "cpu"),
        known_keys=frozenset({"kvCacheType", "batchSize"}),
        flags=FLAGS,
        priced=frozenset(PRICED),
        owned=frozenset(OWNED),
        unpriced=UNPRICED,
        coordination=COORDINATION,
        code=("--trust-remote-code",),
        revision=("--revision", "--code-revision", "--tokenizer-revision"),
        formats=frozenset({"safetensors"}),
        probes=(Probe.CHAT, Probe.RESPONSES, Probe.MESSAGES),
        apis=frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.EMBEDDINGS, Api.RERANK, Api.SCORE, Api.POOLING, Api.CLASSIFY, Api.AUDIO, Api.TOKENIZE}),
        counters=Counters(
            busy=("vllm:num_requests_running", "vllm:num_requests_waiting"),
            prompt_tokens="vllm:prompt_tokens_total",
            tokens="vllm:generation_tokens_total",
            served=("vllm:request_success_total",),
            progress=("vllm:iteration_tokens_total_count",),
        ),
        spread=Spread(
            kinds=frozenset({"tensor", "pipeline", "data", "expert"}), most_hosts=64, replica_domains=True
        ),
        versions={"vllm": package("vllm"), **gpu_stack()},
        caches={
            "VLLM_CACHE_ROOT": CachePath("vllm"),
            "TRITON_CACHE_DIR": CachePath("triton"),
            "TORCHINDUCTOR_CACHE_DIR": CachePath("inductor"),
        },
    )  # fmt: skip

    def ways(self, job: Job) -> Sequence[Way]:
        """One way on each hardware."""
        return [card_way(job, card_settings(self.traits, job, READERS, KV_TYPES))]

    def command(self, settings: CardSettings, launch: Launch) -> list[str]:
        """``vllm serve`` with everything that was priced."""
        return compose(self.traits, _words(settings, launch), launch)

    def node_command(self, settings: CardSettings, launch: Launch, member: Member) -> list[str]:
        """Whole replicas on each node find each other as data-parallel ranks; a model over several nodes as one world.

        Only the head has an API; the others are headless.
        """
        ranks = settings.ranks
        if ranks.data > 1:
            local = ranks.data // member.size
            words = [
                "--data-parallel-size-local",
                str(local),
                "--data-parallel-start-rank",
                str(local * member.rank),
            ]
            words += [
                "--data-parallel-address",
                member.head,
                "--data-parallel-rpc-port",
                str(member.init_port),
            ]
        else:
            words = ["--nnodes", str(member.size), "--node-rank", str(member.rank)]
            words += ["--master-addr", member.head, "--master-port", str(member.init_port)]
        words += ["--headless"] if member.rank else []
        return [*compose(self.traits, _words(settings, launch), launch), *words]

    def environment(self, settings: CardSettings) -> Mapping[str, str]:
        """No reports of use; on CPUs no pinning, for two engines would share one core."""
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        return quiet | (
            {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if settings.hardware == "cpu" else {}
        )


def _words(settings: CardSettings, launch: Launch) -> list[str]:
    sizes, ranks = settings.sizes, settings.ranks
    values = {
        "name": launch.name,
        "host": launch.host,
        "port": launch.port,
        "dtype": settings.dtype,
        "kvCacheType": settings.kv_type,
        "contextLength": sizes.context,
        "parallel": sizes.sequences,
        "batchSize": sizes.batched_tokens,
        "cache": settings.found.kv_cache,
        "memory": share(settings.found.total, launch.cards),
        "eager": not sizes.graphs,
        "prefixCache": True,
        "parallelism.tensor": ranks.tensor,
        "parallelism.pipeline": ranks.pipeline,
        "parallelism.data": ranks.data,
        "parallelism.expert": ranks.expert > 1,
        "drain": settings.drain_s,
    }
    return ["vllm", "serve", launch.model, *priced_flags(FLAGS, settings, values)]
