"""Is a runner healthy, silent or hung? A pure function of what each look at it showed (C2, C5)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

HealthState = Literal["Unknown", "Starting", "Ready", "Silent", "Hung"]
FAILED_CHECKS = 3
"""A live engine is doubted only after so many failed checks in a row."""
COMPUTING_LIMIT = 10
"""How many times the hang timeout an engine may compute with no other sign of life."""


@dataclass(frozen=True)
class Counters:
    """What the engine has done so far, as it tells; 0 where it does not."""

    served: int = 0
    prompt_tokens: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Look:
    """What one look at an engine showed.

    ``healthy``: the health path answered 200. ``loading``: it answered that it still loads, or
    nothing listens yet. ``busy``: requests running or queued, None when the engine did not say.
    ``progress``: figures by name that change when work advances; those that could not be read are
    left out. ``computing``: it runs on CPUs alone and keeps them busy.
    """

    healthy: bool
    loading: bool = False
    busy: int | None = None
    progress: Mapping[str, int] = field(default_factory=dict)
    counters: Counters | None = None
    computing: bool = False


@dataclass(frozen=True)
class Pulse:
    """A runner's health so far. Moments are seconds on the agent's monotonic clock."""

    state: HealthState = "Unknown"
    busy: int = 0
    failed_checks: int = 0
    was_ready: bool = False
    progress: Mapping[str, int] = field(default_factory=dict)
    alive_at: float = 0.0
    """When it last showed a sign of life: progress, idle and answering, or computing."""
    advanced_at: float = 0.0
    """When it last showed one other than computing."""
    counters: Counters = Counters()


def next_pulse(pulse: Pulse, look: Look, *, now: float, hang_s: float, draining: bool) -> Pulse:
    """The pulse after one more look.

    1. Until it has been ready once it is Starting: how long that may take is the controller's.
    2. Progress is life, however slow the health path is; so is an idle engine that answers. On CPUs
       no counter moves while one batch is read, which may take minutes: computing is life too, but
       not for ever, for an engine may also run in circles.
    3. No sign of life for ``hang_s`` while it has work, or after three failed checks: Hung, until
       there is one. A draining runner is never called so: its deadline ends it.
    4. Three failed checks in a row without that: Silent.
    """
    busy = _busy(pulse, look)
    counters = look.counters or pulse.counters
    if not pulse.was_ready and not look.healthy:
        return replace(
            pulse, state="Starting", busy=busy, alive_at=now, advanced_at=now, counters=counters
        )
    failed = 0 if look.healthy else pulse.failed_checks + 1
    advanced = _has_advanced(pulse.progress, look.progress)
    idle = look.healthy and look.busy in (0, None) and busy == 0
    is_moving = advanced or idle or not pulse.was_ready
    computes = look.computing and now - pulse.advanced_at < COMPUTING_LIMIT * hang_s
    is_alive = is_moving or computes
    after = Pulse(
        busy=busy,
        failed_checks=0 if advanced else failed,
        was_ready=True,
        progress={**pulse.progress, **look.progress},
        alive_at=now if is_alive else pulse.alive_at,
        advanced_at=now if is_moving else pulse.advanced_at,
        counters=counters,
    )
    if pulse.state == "Hung" and not is_alive and not draining:
        return replace(after, state="Hung")
    return replace(after, state=_state(after, now=now, hang_s=hang_s, draining=draining))


def _has_advanced(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    return any(name in before and before[name] != value for name, value in now.items())


def _busy(pulse: Pulse, look: Look) -> int:
    """An engine that does not say how busy it is, is as busy as it last was."""
    return pulse.busy if look.busy is None else look.busy


def _state(pulse: Pulse, *, now: float, hang_s: float, draining: bool) -> HealthState:
    doubted = pulse.failed_checks >= FAILED_CHECKS
    silent_for = now - pulse.alive_at
    if not draining and silent_for >= hang_s and (doubted or pulse.busy > 0):
        return "Hung"
    return "Silent" if doubted else "Ready"
