"""How do agent and runner learn what an engine is like? It is written into the Runner, both ways here."""

from dataclasses import asdict

from berth.api.runner import EngineTraits, Metrics, RunnerSpec
from berth.runtimes.base import Counters, Traits
from berth.runtimes.registry import registry


def engine_traits(traits: Traits, health_path: str | None = None) -> EngineTraits:
    """What a Runner says of its engine; a profile may name another health path."""
    return EngineTraits(
        health_path=health_path or traits.health_path,
        metrics=Metrics.model_validate(asdict(traits.counters)) if traits.counters else None,
        versions={label: list(command) for label, command in traits.versions.items()},
    )


def told_traits(spec: RunnerSpec) -> Traits:
    """What a Runner says of its engine; of one that an older controller made, what is known of its runtime here."""
    engine = spec.engine
    if engine is None:
        known = registry().runtimes.get(spec.runtime)
        return known.traits if known is not None else Traits(name=spec.runtime)
    return Traits(
        name=spec.runtime,
        health_path=engine.health_path,
        counters=_counters(engine.metrics) if engine.metrics else None,
        versions={label: tuple(words) for label, words in engine.versions.items()},
    )


def _counters(said: Metrics) -> Counters:
    return Counters(
        busy=tuple(said.busy),
        prompt_tokens=said.prompt_tokens,
        tokens=said.tokens,
        served=tuple(said.served),
        progress=tuple(said.progress),
        path=said.path,
        slots=said.slots,
    )
