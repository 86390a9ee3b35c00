"""Is what was last good kept, found again, and made again as it was?"""

import itertools
import random
from dataclasses import replace
from typing import Any

from berth.api.meta import EnvVar, timestamp
from berth.api.model import LastGood, Model, ModelStatus, Trial
from berth.api.profile import ProfileFields, SmokeTest
from berth.api.runner import GroupMember, RunnerSpec
from berth.controller.last_good import LONGEST, VARIANT, priced_of_record, record_of
from berth.controller.launch import Stamp, runner_spec
from berth.controller.priced import Priced
from berth.controller.rollouts import Rollouts, Standing
from berth.controller.status_switch import switch_news
from berth.controller.telling import Happening
from berth.planner.actions import Place, Plan, Reserve, Seat, Stop
from berth.planner.rollout import Phase
from berth.planner.state import Claim, Restarts, Runner, Stage
from berth.reasons import Reason
from berth.units import Bytes
from builders import runner as seen_runner
from controller.objects import GIB, NOW, model, runner

MODEL = Model.model_validate(model())
SPEC = RunnerSpec.model_validate(
    runner(
        claim={"host": 2 * GIB, "hostFilePages": GIB, "devices": [{"device": "GPU-1", "memory": GIB}]},
        command=["engine", "-c", "4096", "{model}"],
        env=[{"name": "A", "value": "{name}"}],
        image="image:1",
        profile="p",
        contextLength=4096,
        files=[{"name": "m.gguf", "size": GIB, "sha256": "f" * 64}],
        loadTimeoutSeconds=77,
        settingsHash="s1",
        engine={"healthPath": "/ready", "metrics": {"busy": ["in_hand"]}, "versions": {"x": ["x", "-v"]}},
    )["spec"]
)  # fmt: skip
OLD = Priced(settings_hash="s1", profile="p")
NEW = Priced(settings_hash="s2", profile="next", fields=ProfileFields(smoke_test=SmokeTest()))


def up(settings: str = "s1", stage: Stage = Stage.UP, **more: Any) -> tuple[Runner, RunnerSpec]:
    return (
        seen_runner("m", hash=settings, stage=stage, uid=f"uid-{settings}", **more),
        SPEC.model_copy(update={"settings_hash": settings}),
    )


def look(
    rollouts: Rollouts, asked: Priced, *runners: tuple[Runner, RunnerSpec], of: Model = MODEL
) -> Standing:
    return rollouts.look(of, asked, runners, restarts=Restarts(), now=NOW)


def test_a_launch_is_made_again_word_by_word() -> None:
    priced = priced_of_record(record_of(SPEC))
    assert priced is not None
    place, claim = Place("a", ("GPU-1",)), Claim(Bytes(2 * GIB), (("GPU-1", Bytes(GIB)),))
    decision = Reserve("ns/m", place, claim, priced.needs[0], 0, 3)
    made = runner_spec(decision, MODEL, priced, nodes={}, stamp=Stamp(4, "p4"))
    moment = {"attempt": 3, "epoch": 4, "pass_id": "p4", "stage": "Reserved", "variant": VARIANT}
    ref = {"model_ref": made.model_ref, "claim": made.claim}
    assert made.wire() == SPEC.model_copy(update=moment | ref).wire()
    assert (made.claim.host, made.claim.host_file_pages) == (2 * GIB, GIB)
    assert priced.needs[0].variant == VARIANT


def test_what_is_too_long_or_not_of_this_form_is_not_kept() -> None:
    chance = random.Random(7)
    env = [EnvVar(name=f"N{n}", value=chance.randbytes(2000).hex()) for n in range(128)]
    assert record_of(SPEC.model_copy(update={"env": env})) == ""
    assert priced_of_record("") is None
    assert priced_of_record("berth9:abc") is None
    assert priced_of_record("berth1:not base 85 \x00") is None
    assert len(record_of(SPEC)) < LONGEST / 50


def test_the_first_runner_that_is_up_is_what_is_good() -> None:
    rollouts = Rollouts()
    assert look(rollouts, OLD, up(stage=Stage.STARTING)).last_good is None
    standing = look(rollouts, OLD, up())
    want = LastGood(settings_hash="s1", profile="p", since=timestamp(NOW), launch=record_of(SPEC))
    assert (standing.last_good, standing.runs, standing.trial) == (want, OLD, None)
    assert look(rollouts, OLD, up()) is standing


def test_new_settings_are_smoke_tested_until_they_are_good() -> None:
    rollouts = Rollouts()
    look(rollouts, OLD, up())
    # Its test is in the profile; an engine without an API of words has none.
    assert look(rollouts, NEW, up()).runs == NEW
    assert look(rollouts, NEW, up("s2")).runs == NEW


def test_a_new_leader_goes_on_with_the_trial_that_it_finds() -> None:
    good = LastGood(settings_hash="s1", profile="p", launch=record_of(SPEC), owed=True)
    trial = Trial(settings_hash="s2", profile="next", started=True)
    found = MODEL.model_copy(update={"status": ModelStatus(last_good=good, trial=trial)})
    standing = look(Rollouts(), NEW, up("s2", Stage.STARTING), of=found)
    assert (standing.rollout.phase, standing.trial) == (Phase.TRIAL, trial)
    gone = look(Rollouts(), NEW, of=found)
    assert gone.rollout.phase is Phase.BACK
    assert gone.runs.settings_hash == "s1"
    assert gone.trial == trial.model_copy(
        update={"reason": Reason.INTERRUPTED, "failed_at": timestamp(NOW)}
    )


def test_a_launch_that_cannot_be_read_leaves_only_what_is_asked_for() -> None:
    good = LastGood(settings_hash="s1", launch="berth9:of a later release")
    trial = Trial(settings_hash="s2", reason="CrashLoop", failed_at=timestamp(NOW))
    found = MODEL.model_copy(update={"status": ModelStatus(last_good=good, trial=trial)})
    standing = look(Rollouts(), NEW, of=found)
    assert (standing.rollout.phase, standing.runs) == (Phase.FIRST, NEW)


def test_a_plan_that_ends_a_trial_because_somebody_asked_is_no_failure() -> None:
    rollouts = Rollouts()
    look(rollouts, OLD, up())
    trial = up("s2", Stage.STARTING)
    look(rollouts, NEW, up(), trial)
    rollouts.note(Plan((Stop("uid-s2", Reason.SUSPENDED),)), [up()[0], trial[0]], NOW)
    assert rollouts.standings()["ns/m"].trial is None
    look(rollouts, NEW, up(), trial)
    rollouts.note(Plan((Stop("uid-s2", Reason.LOAD_TIMEOUT),)), [up()[0], trial[0]], NOW)
    told = rollouts.standings()["ns/m"].trial
    assert told is not None
    assert told.reason == Reason.LOAD_TIMEOUT


def test_each_step_is_told_once() -> None:
    good = LastGood(settings_hash="s1", profile="p")
    trial = Trial(settings_hash="s2", profile="next", started=True)
    failed = trial.model_copy(update={"reason": "SmokeTestFailed", "message": "no words"})
    steps = [
        ModelStatus(),
        ModelStatus(last_good=good),
        ModelStatus(last_good=good, trial=trial),
        ModelStatus(last_good=good, trial=failed),
        ModelStatus(last_good=good, trial=failed),
        ModelStatus(last_good=LastGood(settings_hash="s3", profile="third")),
    ]
    told = [list(switch_news(a, b)) for a, b in itertools.pairwise(steps)]
    assert told == [
        [],
        [(Happening.SWITCHING, "profile next is tried")],
        [
            (
                Happening.ROLLED_BACK,
                "profile next failed (SmokeTestFailed: no words); the model goes on with profile p"
                " as last good",
            )
        ],
        [],
        [(Happening.SWITCHED, "profile third is up and good; before: profile p")],
    ]


def test_forgotten_with_its_model() -> None:
    rollouts = Rollouts()
    look(rollouts, OLD, up())
    rollouts.keep_only(set())
    assert look(rollouts, NEW, up("s2", Stage.STARTING)).rollout.phase is Phase.FIRST
    assert replace(NEW) == NEW


def test_a_group_is_made_again_with_the_words_of_each_rank() -> None:
    group = {"head": "m-0-0", "size": 2}
    head = SPEC.model_copy(update={"group": GroupMember(rank=0, **group)})
    other = head.model_copy(
        update={"group": GroupMember(rank=1, **group), "command": ["engine", "--headless"]}
    )
    priced = priced_of_record(record_of(head, [other]))
    assert priced is not None
    assert priced.needs[0].hosts == 2
    claim = Claim(Bytes(2 * GIB), (("GPU-1", Bytes(GIB)),))
    seats = (Seat(Place("b", ("GPU-2",)), claim),)
    decision = Reserve("ns/m", Place("a", ("GPU-1",)), claim, priced.needs[0], 0, 0, seats=seats)
    made = [
        runner_spec(decision, MODEL, priced, nodes={}, stamp=Stamp(1, "p"), rank=rank)
        for rank in (0, 1)
    ]
    assert [spec.command for spec in made] == [SPEC.command, ["engine", "--headless"]]
    assert [spec.node_name for spec in made] == ["a", "b"]
    assert [spec.group.rank for spec in made if spec.group] == [0, 1]
