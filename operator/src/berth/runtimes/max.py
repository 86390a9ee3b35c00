"""How is Modular's MAX run? (``max serve``, 26.7)"""

from collections.abc import Mapping, Sequence
from typing import Any

from berth.runtimes.base import Api, CachePath, Job, Launch, Probe, Runtime, Spread, Traits, Way
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
from berth.runtimes.versions import package

PRICED: FlagMap = {
    "contextLength": flag("--max-length"),
    "parallel": flag("--max-batch-size"),
    "batchSize": flag("--max-batch-input-tokens"),
    "dtype": flag("--quantization-encoding"),
}
OWNED: FlagMap = {
    "model": flag("--model-path", "--model"),
    "name": flag("--served-model-name"),
    "host": flag("--host"),
    "port": flag("--port"),
    "memory": flag("--device-memory-utilization"),
    "devices": flag("--devices"),
}
FLAGS: FlagMap = {
    **PRICED,
    **OWNED,
    "prefixCache": switch("--enable-prefix-caching", off=("--no-enable-prefix-caching",)),
    "trustRemoteCode": switch("--trust-remote-code", off=("--no-trust-remote-code",)),
}
UNPRICED = (
    "--data-parallel-degree", "--ep-size", "--kv-cache-format", "--enable-lora", "--lora-paths", "--max-num-loras",
    "--weight-path", "--models", "--model-override", "--speculative", "--kv-cache", "--force-download",
    "--max-batch-total-tokens",
)  # fmt: skip
READERS: Mapping[str, Any] = {
    **COUNT_READERS,
    "dtype": lambda sizes, value: sizes,
}


class Max(Runtime):
    """The runtime ``max``: one node."""

    traits = Traits(
        name="max",
        known_keys=frozenset({"batchSize"}),
        flags=FLAGS,
        priced=frozenset(PRICED),
        owned=frozenset(OWNED),
        unpriced=UNPRICED,
        coordination=("--headless", "--pipeline-role"),
        code=("--trust-remote-code", "--custom-architectures"),
        revision=("--huggingface-model-revision", "--huggingface-weight-revision"),
        formats=frozenset({"safetensors"}),
        probes=(Probe.CHAT,),
        apis=frozenset({Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS}),
        spread=Spread(kinds=frozenset({"tensor"})),
        versions={"max": package("max")},
        caches={"MODULAR_MAX_CACHE_DIR": CachePath("max")},
    )

    def ways(self, job: Job) -> Sequence[Way]:
        """One way, on the GPUs of one node."""
        return [card_way(job, card_settings(self.traits, job, READERS, {"auto": "auto"}))]

    def command(self, settings: CardSettings, launch: Launch) -> list[str]:
        """``max serve`` with everything that was priced."""
        found, sizes = settings.found, settings.sizes
        values = {
            "model": launch.model,
            "name": launch.name,
            "host": launch.host,
            "port": launch.port,
            "dtype": settings.dtype,
            "contextLength": sizes.context,
            "parallel": sizes.sequences,
            "batchSize": sizes.batched_tokens,
            "memory": share(found.weights + found.kv_cache, launch.cards),
            "devices": "gpu:" + ",".join(str(n) for n in range(settings.local_devices)),
            "prefixCache": True,
        }
        return compose(
            self.traits, ["max", "serve", *priced_flags(FLAGS, settings, values)], launch
        )

    def environment(self, settings: CardSettings) -> Mapping[str, str]:
        """No reports of use."""
        return {"MODULAR_TELEMETRY_ENABLED": "0"}
