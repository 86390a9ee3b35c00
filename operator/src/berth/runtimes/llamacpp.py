"""How is llama-server run?

Every setting that moves a byte is passed explicitly: what is charged is what is launched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from berth.estimator import AUTO, Device, Settings, estimate
from berth.estimator.architectures import ENCODERS
from berth.facts import Facts
from berth.runtimes.base import (
    Api,
    Counters,
    Job,
    Launch,
    Probe,
    Runtime,
    Spread,
    Traits,
    Way,
)
from berth.runtimes.flags import Flag, flag, switch
from berth.runtimes.llamacpp_flags import FLAGS, parse, write
from berth.runtimes.template import compose, priced_words
from berth.units import MiB, parse_quantity

if TYPE_CHECKING:
    from berth.api.profile import ProfileFields

DEFAULT_CONTEXT = 4096
"""Tokens a request where a profile says none; the trained length where that is shorter."""
DEFAULT_CHECKPOINTS = 4
"""Context checkpoints a slot. llama-server's own 32 are 5 GB for a Mamba-2 of 2.7B."""
MOST_EXPERT_STEPS = 64

BUILD = 11669
"""llama-server's build in the runner image."""
BASE = Settings(
    parallel=1, kv_unified=False, cache_ram_mib=0, ctx_checkpoints=DEFAULT_CHECKPOINTS, build=BUILD
)

_KEYS = {
    "context": "contextLength",
    "batch": "batchSize",
    "ubatch": "microBatchSize",
    "cache_type_k": "kvCacheType",
    "flash_attn": "flashAttention",
    "cpu_moe": "hostExperts",
    "cache_ram_mib": "cacheRam",
}
"""Settings that a profile has a field for."""
PRICED: Mapping[str, Flag] = {
    _KEYS.get(f.field, f.field): Flag(f.on, "value" if f.takes_value else "switch", f.off)
    for f in FLAGS
}
OWNED: Mapping[str, Flag] = {
    "model": flag("--model", "-m"),
    "name": flag("--alias", "-a"),
    "host": flag("--host"),
    "port": flag("--port"),
    "fit": flag("--fit", "-fit"),
    "metrics": switch("--metrics"),
    "slots": switch("--slots", off=("--no-slots",)),
    "page": switch("--webui", "--ui", off=("--no-webui", "--no-ui")),
    "projector": flag("--mmproj", "-mm"),
    "adapter": flag("--lora-scaled", "--lora"),
    "draft": flag("--model-draft", "-md", "--spec-draft-model"),
    "sessions": flag("--slot-save-path"),
    "fetched": flag("--hf-repo", "-hf", "-hfr", "--hf-file", "-hff", "--model-url", "-mu", "--mmproj-url", "-mmu",
                    "--docker-repo", "-dr", "--spec-draft-hf", "-hfd"),
}  # fmt: skip
UNPRICED = (
    "--embd-gemma-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-30b-default",
    "--gpt-oss-20b-default", "--gpt-oss-120b-default", "--vision-gemma-4b-default", "--vision-gemma-12b-default",
    "--hf-repo-draft", "-hfrd", "--models-dir", "--models-preset", "--mcp-servers-config",
)  # fmt: skip
"""Other models than the one that was verified."""
VERSION = (
    "python3",
    "-c",
    "import subprocess as s;r=s.run(['llama-server','--version'],capture_output=True,text=True);"
    "print(next(w for w in (r.stdout+r.stderr).splitlines() if w.startswith('version'))[8:].strip())",
)
"""llama-server says its compiler last; the line that counts is printed alone."""


class LlamaCpp(Runtime):
    """The runtime ``llamacpp``: llama-server, builds 11434 to 11669."""

    traits = Traits(
        name="llamacpp",
        hardware=("cuda", "cpu"),
        known_keys=frozenset({*_KEYS.values(), "threads"} - {"contextLength"}),
        flags={**PRICED, **OWNED, "api_key": flag("--api-key", "--api-key-file")},
        priced=frozenset(PRICED),
        owned=frozenset({*OWNED, "api_key"} - {"page"}),
        unpriced=UNPRICED,
        coordination=("--rpc", "--device", "-dev"),
        formats=frozenset({"gguf"}),
        takes=frozenset({"projector", "adapters", "draft"}),
        probes=(Probe.CHAT,),
        apis=frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.EMBEDDINGS, Api.RERANK, Api.TOKENIZE, Api.INFILL}),
        counters=Counters(
            busy=("llamacpp:requests_processing", "llamacpp:requests_deferred"),
            prompt_tokens="llamacpp:prompt_tokens_total",
            tokens="llamacpp:tokens_predicted_total",
            progress=("llamacpp:n_decode_total",),
            slots=True,
        ),
        spread=Spread(kinds=frozenset({"tensor"})),
        versions={"llama.cpp": VERSION},
    )  # fmt: skip

    def ways(self, job: Job) -> Sequence[Way]:
        """Whole on its devices, then with the experts of ever more layers on the host; or on the CPU."""
        # Which layers' experts stay on the host is worked out here.
        settings = self.settings(job.facts, job.fields.model_copy(update={"host_experts": None}))
        if job.hardware == "cpu":
            return [_way("cpu", job, replace(settings, n_gpu_layers=0))]
        steps = _expert_steps(job.facts, job.fields, settings)
        found = [_way("cuda", job, settings)]
        return [
            *found,
            *(_way(f"cuda n_cpu_moe={n}", job, replace(settings, n_cpu_moe=n)) for n in steps),
        ]

    def settings(self, facts: Facts, profile: "ProfileFields") -> Settings:
        """llama-server's settings for a model under a profile.

        1. ``contextLength`` is per request; ``-c`` is that times ``parallel``.
        2. Encoders are started for embeddings with a micro-batch as long as their context.
        3. A template's literal flags and ``args`` come last and win, as they do on the command line.
        Raises ValueError on arguments that mean nothing.
        """
        parallel = profile.parallel or 1
        per_request = _per_request(facts, profile)
        found = replace(
            BASE,
            context=per_request * parallel,
            parallel=parallel,
            batch=profile.batch_size or BASE.batch,
            ubatch=profile.micro_batch_size or BASE.ubatch,
            flash_attn=profile.flash_attention or BASE.flash_attn,
            threads=profile.threads or 0,
            cpu_moe=bool(profile.host_experts and profile.host_experts.enabled),
        )
        if profile.kv_cache_type is not None:
            kinds = profile.kv_cache_type
            found = replace(found, cache_type_k=_kind(kinds.k), cache_type_v=_kind(kinds.v))
        if profile.cache_ram is not None:
            found = replace(found, cache_ram_mib=-(-parse_quantity(profile.cache_ram) // MiB))
        if facts.architecture in ENCODERS:
            rows = profile.micro_batch_size or per_request
            found = replace(found, embeddings=True, batch=max(found.batch, rows), ubatch=rows)
        words = priced_words(profile)
        return parse(words, base=found).settings if words else found

    def command(self, settings: Settings, launch: Launch) -> list[str]:
        """llama-server's argument list."""
        words = ["llama-server", "--model", launch.model, "--alias", launch.name]
        words += ["--host", launch.host, "--port", str(launch.port)]
        words += write(settings)
        words += ["--fit", "off", "--metrics", "--slots", "--no-webui"]
        if launch.projector:
            words += ["--mmproj", launch.projector]
        for adapter in launch.adapters:
            words += ["--lora-scaled", f"{adapter.path}:{adapter.scale:g}"]
        if launch.draft:
            words += ["--model-draft", launch.draft]
        if launch.sessions:
            words += ["--slot-save-path", launch.sessions]
        return compose(self.traits, words, launch)


def _way(name: str, job: Job, settings: Settings) -> Way:
    devices: tuple[Device, ...] = job.devices
    found = estimate(
        job.facts,
        settings,
        devices=devices,
        projector=job.projector,
        adapters=job.adapters,
        draft=job.draft,
    )
    context = (settings.context or job.facts.context_length or 0) // settings.slots
    return Way(name, settings, found, context, devices=len(devices))


def _expert_steps(facts: Facts, profile: "ProfileFields", settings: Settings) -> list[int]:
    """Numbers of layers whose experts stay on the host, fewest first; none for dense models."""
    asked = profile.host_experts
    if asked is not None and not asked.enabled:
        return []
    if not (facts.integer("expert_count") or 0) or settings.cpu_moe or settings.n_cpu_moe:
        return []
    layers = facts.layers or 0
    step = max(1, -(-layers // MOST_EXPERT_STEPS))
    return sorted({*range(step, layers, step), layers} - {0})


def _per_request(facts: Facts, profile: "ProfileFields") -> int:
    """Tokens of one request: as asked, up to the profile's most; 0 and nothing mean the documented default."""
    trained = facts.context_length or DEFAULT_CONTEXT
    if profile.context_length is None:
        return min(trained, DEFAULT_CONTEXT, profile.max_context_length or DEFAULT_CONTEXT)
    asked = profile.context_length or trained
    return min(asked, profile.max_context_length) if profile.max_context_length else asked


def _kind(kind: str) -> str:
    """A profile's cache type as llama-server names it; ``auto`` is f16, ``fp8`` its 8-bit type."""
    return {"auto": "f16", "fp8": "q8_0"}.get(kind, kind)


__all__ = ["AUTO", "LlamaCpp"]
