"""What is the cluster's state, in the planner's words? Objects and sightings in, one value out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from berth.api.model import Model as ModelObject
from berth.api.model import ModelStatus
from berth.api.runner import RunnerSpec
from berth.controller.copies import Shelf, with_copies
from berth.controller.groups import as_groups
from berth.controller.history import History
from berth.controller.holds import HOLDER_SILENT_S, grant_holds, with_hold
from berth.controller.memo import Memo
from berth.controller.observe_models import Defaults, observe_model
from berth.controller.observe_nodes import observe_nodes
from berth.controller.observe_runners import Entry, entries, observe_runners
from berth.controller.priced import Priced
from berth.controller.returning import Returning
from berth.controller.rollouts import Rollouts, Standing
from berth.controller.sightings import Sightings
from berth.controller.status_runner import RunnerReport
from berth.controller.store import Store
from berth.planner.restarts import OF_THE_PLACE
from berth.planner.rollout import Phase, counts_as_failure
from berth.planner.state import HOST, Model, Node, Restarts, Runner, Stage, State
from berth.units import Bytes


@dataclass
class Remembered:
    """What outlives a pass. All of it can be lost: a new leader starts with an empty one."""

    history: History
    sightings: Sightings = field(default_factory=Sightings)
    returning: Returning = field(default_factory=Returning)
    rollouts: Rollouts = field(default_factory=Rollouts)
    copies: Shelf = field(default_factory=Shelf)
    models: Memo[Model] = field(default_factory=Memo)
    nodes: Memo[Node] = field(default_factory=Memo)
    reports: Memo[RunnerReport] = field(default_factory=Memo)
    statuses: Memo[ModelStatus | None] = field(default_factory=Memo)
    """None where the Model says it already."""


@dataclass(frozen=True)
class Frame:
    """What a pass is told beside the objects."""

    epoch: int
    healthy_since: float
    prices: Mapping[str, Priced] = field(default_factory=dict)
    """By Model key; a Model that is not in it is still being read."""
    defaults: Defaults = field(default_factory=Defaults)
    host_reserve: Bytes = Bytes(1 << 30)
    fairness_s: float = 60.0
    healthy_needed_s: float = 90.0
    drain_quiet_s: float = 2.0
    hold_silence_s: float = HOLDER_SILENT_S


@dataclass(frozen=True)
class Observation:
    """One snapshot: the state for the planner, and the ledger as objects for apply and status."""

    state: State
    entries: tuple[Entry, ...]
    models: Mapping[str, ModelObject]
    """By key, those that are being deleted left out."""
    prices: Mapping[str, Priced] = field(default_factory=dict)
    """By Model key: the settings with which its next runner is started."""
    failed_now: tuple[Entry, ...] = ()
    """Entries whose failure was seen for the first time."""


def observe(store: Store, remembered: Remembered, frame: Frame, now: float) -> Observation:
    """The cluster as it is seen at ``now``."""
    history, sightings = remembered.history, remembered.sightings
    history.keep_only({model.key for model in store.models})
    for model in store.models:
        history.adopt(model)
    found = entries(store, sightings, now)
    runners = as_groups(
        found,
        tuple(
            _with_memory(runner, remembered.returning)
            for runner in observe_runners(found, sightings, now)
        ),
    )
    objects = {
        key: model
        for key, model in sorted(store.models.items())
        if not model.metadata.deletion_timestamp
    }
    standings = _standings(objects, found, runners, remembered, frame, now)
    # One failure for a group, however many of it end; none for what its head has left behind.
    uids = {runner.uid for runner in runners}
    counted_as = {r.uid: r.part_of if r.part_of in uids else r.uid for r in runners}
    failed_now = tuple(
        entry
        for entry in found
        if _count_failure(
            entry, counted_as[entry.uid], standings.get(entry.model_key), history=history, now=now
        )
    )
    _remember(runners, history, now)
    bare = observe_nodes(
        store, sightings, remembered.nodes, host_reserve=frame.host_reserve, now=now
    )
    nodes = with_copies(bare, store.pods)
    _measure(found, nodes, history)
    remembered.returning.note(runners, nodes, now)
    state = State(
        now=now,
        epoch=frame.epoch,
        nodes=remembered.returning.corrected(nodes),
        models=_models(objects, standings, store, remembered, frame, now),
        runners=runners,
        healthy_since=frame.healthy_since,
        fairness_s=frame.fairness_s,
        recently_freed=history.recently_freed(),
        healthy_needed_s=frame.healthy_needed_s,
        drain_quiet_s=frame.drain_quiet_s,
    )
    remembered.models.forget_untouched()
    remembered.nodes.forget_untouched()
    prices = {key: standing.runs for key, standing in standings.items()}
    return Observation(state, tuple(found), objects, prices, failed_now)


def _standings(
    objects: Mapping[str, ModelObject],
    found: Sequence[Entry],
    runners: Sequence[Runner],
    remembered: Remembered,
    frame: Frame,
    now: float,
) -> Mapping[str, Standing]:
    """How each Model that was priced stands to its settings."""
    own: dict[str, list[tuple[Runner, RunnerSpec]]] = {}
    for entry, runner in zip(found, runners, strict=True):
        if entry.runner is not None:
            own.setdefault(runner.model, []).append((runner, entry.runner.spec))
    remembered.rollouts.keep_only(set(objects))
    return {
        key: remembered.rollouts.look(
            model,
            frame.prices[key],
            own.get(key, ()),
            restarts=remembered.history.restarts(key, now),
            now=now,
        )
        for key, model in objects.items()
        if key in frame.prices
    }


def _remember(runners: tuple[Runner, ...], history: History, now: float) -> None:
    """What runners teach: who has gone, what they really take, that they are steady."""
    history.saw_runners({r.uid: (r.node, _devices(r)) for r in runners}, now)
    for runner in runners:
        if runner.stage is Stage.UP and runner.up_since is not None:
            history.steady(runner.model, runner.up_since, now)


def _models(
    objects: Mapping[str, ModelObject],
    standings: Mapping[str, Standing],
    store: Store,
    remembered: Remembered,
    frame: Frame,
    now: float,
) -> tuple[Model, ...]:
    grants = grant_holds(store.holds, store.nodes)
    models = tuple(
        with_hold(
            _changing(
                observe_model(
                    model,
                    store.demands.get(key),
                    standings[key].runs if key in standings else None,
                    sightings=remembered.sightings,
                    history=remembered.history,
                    memo=remembered.models,
                    defaults=frame.defaults,
                    now=now,
                ),
                standings.get(key),
            ),
            model.status.hold,
            grants,
        )
        for key, model in objects.items()
    )
    for model in models:
        if model.load_asked is not None:
            remembered.history.asked_by_hand(model.key, model.load_asked)
    return models


def _changing(model: Model, standing: Standing | None) -> Model:
    """The Model with what a change of its settings means for the planner; most change nothing.

    Failures of what was good say nothing about what is on trial; places that failed are places.
    """
    rollout = standing.rollout if standing is not None else None
    if rollout is None or (
        rollout.phase in (Phase.FIRST, Phase.STEADY) and not rollout.change.owed
    ):
        return model
    good = rollout.change.good
    is_new = bool(good) and model.settings_hash != good
    return replace(
        model,
        owed=rollout.change.owed,
        on_trial=rollout.phase is Phase.TRIAL,
        restarts=Restarts(excluded=model.restarts.excluded) if is_new else model.restarts,
    )


def _with_memory(runner: Runner, returning: Returning) -> Runner:
    """A pod whose Runner is gone has nobody to report what it holds: what it held then counts."""
    if runner.measured or runner.stage is not Stage.STOPPING:
        return runner
    return replace(runner, measured=returning.held(runner.uid))


def _devices(runner: Runner) -> tuple[str, ...]:
    return tuple(uuid for uuid, _ in runner.claim.devices) or (HOST,)


def _count_failure(
    entry: Entry, one: str, standing: Standing | None, *, history: History, now: float
) -> bool:
    """Whether a failure is new; ``one`` is the uid by which it is counted."""
    outcome, runner = entry.outcome, entry.runner
    if outcome is None or runner is None:
        return False
    rollout = standing.rollout if standing else None
    of_trial = not counts_as_failure(rollout, runner.spec.settings_hash)
    if of_trial and outcome.reason not in OF_THE_PLACE:
        return history.saw_failure(one)
    return history.failed(entry.model_key, one, outcome, node=entry.node, now=now)


def _measure(found: Iterable[Entry], nodes: Iterable[Node], history: History) -> None:
    """Keep what runners that are up really hold: the next placement uses it."""
    names = {device.uuid: device.name for node in nodes for device in node.devices}
    for entry in found:
        if entry.stage is Stage.UP and entry.runner is not None:
            history.measurements.saw(entry.model_key, entry.runner, names)
