"""What have the looks at a runner's engine shown, and how is that told and taken up again?"""

from dataclasses import dataclass, field

from berth.agent.health import Counters, Pulse
from berth.agent.live import Measured
from berth.agent.quiet import Rest
from berth.api.meta import moment_of, timestamp
from berth.api.runner import AgentStatus, DrainOrder, Health, MemoryUse, Quiet

_COUNT_LIMIT = 1_000_000
"""Of a count in the API."""


@dataclass(frozen=True)
class Seen:
    """Everything that the looks at one pod have shown."""

    pulse: Pulse = field(default_factory=Pulse)
    since: str = ""
    """When the state of the pulse began."""
    memory: MemoryUse | None = None
    held: Measured = field(default_factory=Measured)
    rest: Rest | None = None


def seen_before(found: AgentStatus, *, now: float) -> Seen:
    """What an agent that lived before on this node has told, so that a restart takes nothing back.

    Silence counts from now: nobody looked while no agent was here.
    """
    health, rest = found.health, None
    if found.quiet is not None:
        rest = Rest(since=moment_of(found.quiet.since), order=found.quiet.drain_seen)
    if health is None:
        return Seen(memory=found.memory, rest=rest)
    pulse = Pulse(
        state=health.state,
        busy=health.busy,
        failed_checks=health.failed_checks,
        was_ready=health.state in ("Ready", "Silent", "Hung"),
        alive_at=now,
        advanced_at=now,
        counters=Counters(health.served, health.prompt_tokens, health.tokens),
    )
    return Seen(pulse=pulse, since=health.since, memory=found.memory, rest=rest)


def health_of(seen: Seen) -> Health | None:
    """None before the first look."""
    pulse = seen.pulse
    if pulse.state == "Unknown":
        return None
    return Health(
        state=pulse.state,
        busy=min(pulse.busy, _COUNT_LIMIT),
        since=seen.since,
        served=pulse.counters.served,
        prompt_tokens=pulse.counters.prompt_tokens,
        tokens=pulse.counters.tokens,
        failed_checks=min(pulse.failed_checks, _COUNT_LIMIT),
    )


def quiet_of(seen: Seen, drain: DrainOrder | None) -> Quiet | None:
    """Only under the order that stands now."""
    rest = seen.rest
    if rest is None or drain is None or rest.order != drain.since:
        return None
    return Quiet(since=timestamp(rest.since), drain_seen=rest.order)
