"""How does each Model stand to the settings that it asks for? What is remembered of it between passes.

All of it is in the Models' statuses, from which a new leader takes it over; ``planner.rollout`` decides.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from berth.api.meta import moment_or_none, timestamp
from berth.api.model import LastGood, Model, ModelStatus, Trial
from berth.api.runner import RunnerSpec
from berth.controller.last_good import in_place_of, priced_of_record, record_of
from berth.controller.priced import Priced
from berth.controller.smoke import smoke_request
from berth.planner.actions import Plan
from berth.planner.rollout import Asked, Change, Phase, Rollout, after_plan, plan_rollout
from berth.planner.state import Restarts, Runner
from berth.reasons import Reason


@dataclass(frozen=True)
class Standing:
    """One Model in one pass: what is asked for, what runners are started with, what to write down."""

    asked: Priced
    runs: Priced
    """With which settings the next runner is started."""
    rollout: Rollout
    last_good: LastGood | None = None

    @property
    def trial(self) -> Trial | None:
        """The trial as the Model's status tells it."""
        change = self.rollout.change
        if not change.trial:
            return None
        return Trial(
            settings_hash=change.trial,
            profile=self.asked.profile,
            started=change.started or None,
            failed_at=timestamp(change.failed_at) if change.failed else None,
            reason=change.failed,
            message=change.message[:1024] or None,
        )


class Rollouts:
    """The Models' changes of settings, by key."""

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}
        self._good: dict[str, LastGood] = {}
        self._launches: dict[str, tuple[str, Priced | None]] = {}
        self._standings: dict[str, Standing] = {}

    def look(
        self,
        model: Model,
        asked: Priced,
        runners: Sequence[tuple[Runner, RunnerSpec]],
        *,
        restarts: Restarts,
        now: float,
    ) -> Standing:
        """Where the Model stands now; ``runners`` are its own, with their specs."""
        key = model.key
        before = self._changes.get(key)
        if before is None:
            before = self._adopt(key, model.status)
        question = Asked(asked.settings_hash, asked.blocked, restarts)
        heads = [runner for runner, _ in runners if not runner.part_of]
        found = plan_rollout(before, question, heads, now)
        if found.change.good != before.good:
            self._keep(key, found.change.good, [spec for _, spec in runners], now)
        self._changes[key] = found.change
        good = self._launch(key)
        if found.is_back and good is None:
            found = replace(found, phase=Phase.FIRST, settings=asked.settings_hash)
        standing = Standing(asked, _runs(model, asked, good, found), found, self._told(key, found))
        if standing != self._standings.get(key):
            self._standings[key] = standing
        return self._standings[key]

    def note(self, plan: Plan, runners: Iterable[Runner], now: float) -> None:
        """Take in what a plan does to trials, before it is carried out."""
        by_model: dict[str, list[Runner]] = {}
        for runner in runners:
            by_model.setdefault(runner.model, []).append(runner)
        for key, standing in list(self._standings.items()):
            if not standing.rollout.change.trial:
                continue
            change = after_plan(standing.rollout.change, plan, by_model.get(key, ()), now)
            if change != standing.rollout.change:
                self._changes[key] = change
                rollout = replace(standing.rollout, change=change)
                self._standings[key] = replace(standing, rollout=rollout)

    def standings(self) -> Mapping[str, Standing]:
        return self._standings

    def keep_only(self, keys: set[str]) -> None:
        """Forget Models that are gone."""
        for known in (self._changes, self._good, self._launches, self._standings):
            for key in [key for key in known if key not in keys]:
                del known[key]

    def _adopt(self, key: str, status: ModelStatus) -> Change:
        """What a former leader has written down."""
        good, trial = status.last_good, status.trial
        if good is None or not good.settings_hash:
            return Change()
        self._good[key] = good
        change = Change(good.settings_hash, fell=bool(good.fell), owed=bool(good.owed))
        if trial is None or not trial.settings_hash:
            return change
        return replace(
            change,
            trial=trial.settings_hash,
            started=bool(trial.started),
            failed=_reason(trial.reason),
            message=trial.message or "",
            failed_at=moment_or_none(trial.failed_at) or 0.0,
        )

    def _keep(self, key: str, settings: str, specs: Iterable[RunnerSpec], now: float) -> None:
        mine = [spec for spec in specs if spec.settings_hash == settings]
        spec = next((spec for spec in mine if spec.group is None or not spec.group.rank), None)
        self._good[key] = LastGood(
            settings_hash=settings,
            profile=spec.profile if spec else "",
            since=timestamp(now),
            launch=record_of(spec, _ranks(spec, mine)) if spec else "",
        )

    def _launch(self, key: str) -> Priced | None:
        good = self._good.get(key)
        if good is None:
            return None
        known = self._launches.get(key)
        if known is None or known[0] != good.launch:
            known = self._launches[key] = (good.launch, priced_of_record(good.launch))
        return known[1]

    def _told(self, key: str, found: Rollout) -> LastGood | None:
        good = self._good.get(key)
        if good is None or good.settings_hash != found.change.good:
            return None
        told = {"fell": found.change.fell or None, "owed": found.change.owed or None}
        if (good.fell, good.owed) != (told["fell"], told["owed"]):
            good = self._good[key] = good.model_copy(update=told)
        return good


def _ranks(head: RunnerSpec, specs: Iterable[RunnerSpec]) -> list[RunnerSpec]:
    """The other members of a group, in the order of their ranks."""
    if head.group is None:
        return []
    name = head.group.head
    ranks = {s.group.rank: s for s in specs if s.group is not None and s.group.head == name}
    return [ranks[rank] for rank in sorted(ranks) if rank]


def _runs(model: Model, asked: Priced, good: Priced | None, found: Rollout) -> Priced:
    if found.is_back and good is not None:
        return in_place_of(asked, good)
    is_new = bool(asked.settings_hash) and asked.settings_hash != found.change.good
    if not is_new or not (found.change.good or asked.fields.smoke_test):
        return asked
    return replace(asked, smoke=smoke_request(model, asked))


def _reason(text: str | None) -> Reason | None:
    try:
        return Reason(text) if text else None
    except ValueError:
        # Of a later release: that it failed is what counts.
        return Reason.CRASHED
