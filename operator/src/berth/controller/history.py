"""How have loads failed lately, and when may they be tried again? What outlives a single pass."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from berth.api.meta import moment_or_none
from berth.api.model import Model
from berth.controller.measurements import Measurements
from berth.controller.outcomes import Outcome
from berth.planner.restarts import after_oom, next_restart
from berth.planner.state import Need, Restarts
from berth.reasons import Reason

_STEADY_S = 60.0
"""A runner that was up this long has recovered: the next crash is a first one."""
_FREED_S = 120.0


@dataclass(frozen=True)
class Failures:
    """One Model's failed loads, since its last change or since it was last steady."""

    generation: int
    restarts: Restarts = Restarts()
    oom_kills: int = 0


class History:
    """Failures and measured needs by Model, and when places became free."""

    def __init__(self) -> None:
        self._models: dict[str, Failures] = {}
        self._counted: set[str] = set()
        self._asked: dict[str, float] = {}
        self.measurements = Measurements()
        self._last_seen: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._freed: dict[str, float] = {}

    def adopt(self, model: Model) -> None:
        """Take over what a former leader noted in the Model's status; a changed Model starts anew."""
        self.measurements.adopt(model)
        key, generation = model.key, model.metadata.generation
        known = self._models.get(key)
        if known is not None and known.generation == generation:
            return
        restarts = Restarts()
        if known is None and model.status.observed_generation == generation:
            restarts = Restarts(
                count=model.status.restarts, next_retry=moment_or_none(model.status.next_retry)
            )
        self._models[key] = Failures(generation, restarts)

    def restarts(self, key: str, now: float) -> Restarts:
        """What the planner may know of a Model's failures now."""
        known = self._models.get(key)
        if known is None:
            return Restarts()
        if not known.restarts.excluded:
            return known.restarts
        current = tuple(entry for entry in known.restarts.excluded if entry[1] > now)
        return replace(known.restarts, excluded=current)

    def failed(self, key: str, runner: str, outcome: Outcome, *, node: str, now: float) -> bool:
        """Count one runner's failure, once. False when it was counted before."""
        if runner in self._counted:
            return False
        self._counted.add(runner)
        known = self._models.get(key, Failures(0))
        restarts = next_restart(
            known.restarts, now=now, reason=outcome.reason, node=node, message=outcome.message
        )
        killed = known.oom_kills + (outcome.reason is Reason.OOM_KILLED)
        self._models[key] = replace(known, restarts=restarts, oom_kills=killed)
        return True

    def saw_failure(self, runner: str) -> bool:
        """Note a failure that is not the Model's own. False when it was seen before."""
        if runner in self._counted:
            return False
        self._counted.add(runner)
        return True

    def larger(self, key: str, settings_hash: str, needs: tuple[Need, ...]) -> tuple[Need, ...]:
        """Needs made as large as earlier runners, and kills for want of memory, have shown."""
        known = self._models.get(key)
        kills = known.oom_kills if known else 0
        larger = self.measurements.larger
        return tuple(after_oom(larger(key, settings_hash, need), kills) for need in needs)

    def steady(self, key: str, up_since: float, now: float) -> None:
        """A runner of the Model is up; after a while its failures are forgotten."""
        known = self._models.get(key)
        if known is not None and known.restarts != Restarts() and now - up_since >= _STEADY_S:
            # What was learnt about its size stays.
            self._models[key] = Failures(known.generation, oom_kills=known.oom_kills)

    def asked_by_hand(self, key: str, asked: float) -> None:
        """A load by hand tries again at once, whatever failed before; each asking does so once."""
        known = self._models.get(key)
        if known is not None and self._asked.get(key) != asked:
            self._asked[key] = asked
            self._models[key] = Failures(known.generation)

    def saw_runners(self, places: Mapping[str, tuple[str, tuple[str, ...]]], now: float) -> None:
        """Note which of the runners seen before are gone; ``places`` is node and devices by uid."""
        for uid, (node, devices) in self._last_seen.items():
            if uid not in places:
                for device in devices:
                    self._freed[f"{node}/{device}"] = now
        self._last_seen = dict(places)
        self._counted &= set(places)
        self._freed = {place: at for place, at in self._freed.items() if now - at < _FREED_S}

    def recently_freed(self) -> dict[str, float]:
        return dict(self._freed)

    def keep_only(self, keys: set[str]) -> None:
        """Forget Models that are gone."""
        self._models = {key: value for key, value in self._models.items() if key in keys}
        self._asked = {key: value for key, value in self._asked.items() if key in keys}
        self.measurements.keep_only(keys)
