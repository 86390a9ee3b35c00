"""Which Residency governs a node, and what does it say in the planner's words?

The controller plans by it and the agent admits by it: one reading of the object for both.
"""

from collections.abc import Iterable, Mapping

from berth.api.meta import bytes_of, seconds_of
from berth.api.residency import Residency
from berth.api.runner import RunnerSpec
from berth.planner.state import KeptDevices, Policy
from berth.units import Bytes


def governing(residencies: Iterable[Residency], labels: Mapping[str, str]) -> Residency | None:
    """Of those whose selector matches, the one of the highest priority; ties go to the first name."""
    matching = (r for r in residencies if selects(r.spec.node_selector, labels))
    return min(matching, key=lambda r: (-r.spec.priority, r.metadata.name), default=None)


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether labels hold every pair of the selector; an empty one selects everything."""
    return all(labels.get(key) == value for key, value in selector.items())


def code_of(runner: RunnerSpec) -> frozenset[str]:
    """What of a Runner needs trust, whatever it says of itself."""
    said: set[str] = set(runner.runs_code)
    said |= {"PreExec"} if runner.pre_exec else set()
    return frozenset(said | ({"PodTemplate"} if runner.pod_template is not None else set()))


def policy_of(residency: Residency | None, *, host_reserve: Bytes) -> Policy:
    """What it says; ``host_reserve`` holds where no Residency governs."""
    if residency is None:
        return Policy(host_reserve=host_reserve)
    spec = residency.spec
    return Policy(
        name=residency.metadata.name,
        host_reserve=bytes_of(spec.host.reserve),
        unified_floor=bytes_of(spec.host.floor),
        unified_margin=bytes_of(spec.host.margin),
        gpu_reserve=None if spec.gpu.reserve is None else bytes_of(spec.gpu.reserve),
        devices=frozenset(spec.gpu.devices),
        cpu_runners=spec.cpu_runners,
        max_runners=spec.max_runners,
        settle_s=seconds_of(spec.settle_time),
        models=frozenset(spec.models),
        kept_devices=tuple(
            KeptDevices(frozenset(kept.devices), frozenset(kept.models)) for kept in spec.gpu.keep
        ),
        load_order=tuple(spec.load_order),
        autoload=tuple(spec.autoload),
        claims=Bytes(sum(bytes_of(claim.memory) for claim in spec.claims)),
        host_paths=tuple(spec.host_paths),
        host_weights=_budget(spec.host_weights.budget),
        drop_after_load=spec.host_weights.after_load == "Drop",
        trust=frozenset(spec.trust),
        env=tuple((variable.name, variable.value) for variable in spec.env),
    )


def _budget(text: str) -> Bytes:
    return Bytes(1 << 62) if text == "unlimited" else bytes_of(text)
