"""How is llama-server run?

Every setting that moves a byte is passed explicitly: what is charged is what is launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from berth.estimator import AUTO, Device, Estimate, Host, Settings, estimate
from berth.estimator.architectures import ENCODERS
from berth.facts import Facts
from berth.runtimes.base import Launch
from berth.runtimes.llamacpp_flags import parse, write
from berth.units import MiB, parse_quantity

if TYPE_CHECKING:
    from berth.api.profile import ProfileFields

DEFAULT_CONTEXT = 4096
"""Tokens a request where a profile says none; the trained length where that is shorter."""
DEFAULT_CHECKPOINTS = 4
"""Context checkpoints a slot. llama-server's own 32 are 5 GB for a Mamba-2 of 2.7B."""

BASE = Settings(parallel=1, kv_unified=False, cache_ram_mib=0, ctx_checkpoints=DEFAULT_CHECKPOINTS)


class LlamaCpp:
    """The runtime ``llamacpp``: llama-server, builds 11434 to 11669."""

    name = "llamacpp"
    health_path = "/health"

    def settings(self, facts: Facts, profile: ProfileFields) -> Settings:
        """llama-server's settings for a model under a profile.

        1. ``contextLength`` is per request; ``-c`` is that times ``parallel``.
        2. Encoders are started for embeddings with a micro-batch as long as their context.
        3. ``args`` come last and win, as they do on the command line.
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
        return parse(profile.args, base=found).settings if profile.args else found

    def command(self, settings: Settings, launch: Launch, extra: Sequence[str] = ()) -> list[str]:
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
        return [*words, *extra]

    def environment(self, settings: Settings) -> Mapping[str, str]:
        """None: everything is an argument."""
        return {}

    def estimate(
        self,
        facts: Facts,
        settings: Settings,
        *,
        devices: Sequence[Device] = (),
        host: Host | None = None,
        projector: Facts | None = None,
        adapters: Sequence[Facts] = (),
        draft: Facts | None = None,
    ) -> Estimate:
        """What llama-server takes with these settings on these devices. Raises ValueError."""
        return estimate(
            facts,
            settings,
            devices=devices,
            host=host,
            projector=projector,
            adapters=adapters,
            draft=draft,
        )


def _per_request(facts: Facts, profile: ProfileFields) -> int:
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
