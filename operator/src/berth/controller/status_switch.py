"""What do people read of a change of settings? Two conditions, one Event a step, and two names."""

from collections.abc import Iterator, Sequence

from berth.api.model import ModelStatus, Trial
from berth.controller.conditions import ConditionSheet
from berth.controller.observe_runners import Entry
from berth.controller.rollouts import Standing
from berth.controller.telling import Happening
from berth.planner.actions import Refuse
from berth.planner.rollout import Phase
from berth.planner.state import Stage
from berth.reasons import ConditionType, Reason

_STEPS = {
    Stage.PREPARING: (
        Reason.PREPARING,
        "its files are fetched to {node}; nothing was stopped for it",
    ),
    Stage.RESERVED: (Reason.RESERVED, "it has its place on {node} and waits until that is free"),
    Stage.STARTING: (Reason.STARTING, "it starts on {node} and is tried"),
}


def put_switch(
    sheet: ConditionSheet,
    standing: Standing | None,
    *,
    entries: Sequence[Entry],
    refusal: Refuse | None,
) -> None:
    """``Switching`` while new settings wait or are tried, ``RolledBack`` while they have failed.

    A Model that never changed its settings has neither.
    """
    if standing is None or standing.rollout.phase in (Phase.FIRST, Phase.STEADY):
        _put_settled(sheet, standing)
        return
    name, change = _named(standing.asked.profile), standing.rollout.change
    if standing.rollout.phase is Phase.BACK and not change.fell:
        reason, why = _why_not(standing)
        old = _named(standing.runs.profile)
        text = (
            f"{name} is not in force ({reason}): {why}; the model goes on with {old} as last good"
        )
        sheet.put(ConditionType.SWITCHING, "False", reason, text)
        if change.failed is not None:
            sheet.put(ConditionType.ROLLED_BACK, "True", reason, text)
        return
    reason, step = _step(standing, entries, refusal)
    sheet.put(ConditionType.SWITCHING, "True", reason, f"{name}: {step}")


def _put_settled(sheet: ConditionSheet, standing: Standing | None) -> None:
    if standing is None:
        sheet.keep(ConditionType.SWITCHING)
        sheet.keep(ConditionType.ROLLED_BACK)
    elif standing.rollout.phase is Phase.STEADY and sheet.had(ConditionType.SWITCHING):
        text = f"the model runs with {_named(standing.asked.profile)}"
        sheet.put(ConditionType.SWITCHING, "False", Reason.SWITCHED, text)


def _why_not(standing: Standing) -> tuple[Reason, str]:
    change, asked = standing.rollout.change, standing.asked
    if asked.blocked is not None:
        return asked.blocked, asked.blocked_message
    return change.failed or Reason.CRASHED, change.message or "its runner did not come up"


def _step(
    standing: Standing, entries: Sequence[Entry], refusal: Refuse | None
) -> tuple[Reason, str]:
    settings = standing.asked.settings_hash
    for entry in entries:
        runner = entry.runner
        if runner is not None and runner.spec.settings_hash == settings and entry.stage in _STEPS:
            reason, text = _STEPS[entry.stage]
            return reason, text.format(node=entry.node)
    if standing.asked.blocked is not None:
        return standing.asked.blocked, standing.asked.blocked_message
    if standing.rollout.change.fell:
        return Reason.SWITCH_WAITS, "what was last good went down by itself and comes back first"
    if refusal is not None:
        return refusal.reason, refusal.message
    return Reason.SWITCH_WAITS, "it is tried when its turn comes, or at the next load"


def _named(profile: str) -> str:
    return f"profile {profile}" if profile else "its settings"


def previous_profile(before: ModelStatus, standing: Standing | None) -> str | None:
    """The profile that the active one took the place of."""
    good, told = standing.last_good if standing else None, before.last_good
    if good is None or told is None or good.settings_hash == told.settings_hash:
        return before.previous_profile
    return told.profile or None


def switch_news(before: ModelStatus, after: ModelStatus) -> Iterator[tuple[Happening, str]]:
    """What happened between two statuses, each once."""
    old, new = before.last_good, after.last_good
    if new is not None and old is not None and new.settings_hash != old.settings_hash:
        yield (
            Happening.SWITCHED,
            f"{_named(new.profile)} is up and good; before: {_named(old.profile)}",
        )
    tried, told = after.trial, before.trial
    if tried is None:
        return
    same = told is not None and told.settings_hash == tried.settings_hash
    if not same:
        yield Happening.SWITCHING, f"{_named(tried.profile)} is tried"
    if tried.reason and not (same and told is not None and told.reason):
        yield Happening.ROLLED_BACK, _failed(tried, after)


def _failed(tried: Trial, after: ModelStatus) -> str:
    why = f"{tried.reason}: {tried.message}" if tried.message else tried.reason
    good = _named(after.last_good.profile if after.last_good else "")
    return f"{_named(tried.profile)} failed ({why}); the model goes on with {good} as last good"
