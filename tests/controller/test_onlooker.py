"""Does somebody who only looks see what the controller sees?"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth.api.meta import timestamp
from berth.api.model import FactsStatus, Model
from berth.api.profile import Profile
from berth.api.residency import Residency
from berth.controller.onlooker import Terms, declare, files_of, look, wanted
from berth.controller.parts import facts_status, parts_of
from berth.controller.pricing import PriceSettings, Unpriceable
from berth.controller.resolve import source_hash
from berth.controller.store import Store
from berth.controller.volumes import Requirement, Volume
from berth.headers import HeaderRequest, PathSource
from berth.headers.read import read_source
from berth.planner.actions import Prepare
from berth.planner.explain import plan_if_asked
from berth.planner.state import Stage
from berth.reasons import Reason
from berth.settings import Settings
from controller.objects import (
    GIB,
    NOW,
    demand,
    inventory,
    model,
    node,
    pod,
    residency,
    runner,
    store,
)
from fakes.gguf import sparse_llama

IMAGES = PriceSettings(images={"llamacpp/cpu": "cpu:1"})
TERMS = Terms(Settings({}), IMAGES, NOW)


@pytest.fixture
def facts(tmp_path: Path) -> FactsStatus:
    sparse_llama(tmp_path / "m.gguf", weights=GIB)
    found = Model.model_validate(model())
    result = read_source(HeaderRequest(PathSource(str(tmp_path / "m.gguf"))))
    return facts_status({"weights": result}, parts_of(found), source_hash(found))


def known(facts: FactsStatus, name: str = "m", **spec: Any) -> dict[str, Any]:
    """A Model whose header the controller has read; all have the same source."""
    source = {"url": {"uri": "https://files.example/m.gguf"}}
    return model(name, source=source, status={"facts": facts.wire()}, **spec)


def seen(of: Store, **more: Any) -> dict[str, Any]:
    state = look(of, TERMS, more).state
    return {found.key: found for found in state.models}


def test_the_stored_facts_are_priced_and_the_watches_count_as_healthy(facts: FactsStatus) -> None:
    of = store(
        models=[known(facts)],
        nodes=[node()],
        inventories=[inventory(epoch=7)],
        runners=[runner(epoch=5, status={"upSince": timestamp(NOW - 50)})],
        pods=[pod()],
    )
    state = look(of, TERMS, {}).state
    assert [need.variant for need in state.models[0].needs] == ["cpu"]
    assert (state.epoch, state.healthy_since) == (7, 0.0)
    assert [(r.stage, r.up_since) for r in state.runners] == [(Stage.UP, NOW - 50)]


def test_who_waits_has_waited_since_its_gateway_said(facts: FactsStatus) -> None:
    said = {"gateway": "g", "requests": 2, "since": timestamp(NOW - 40), "beat": 3}
    ahead = {"gateway": "h", "requests": 1, "since": timestamp(NOW + 40), "beat": 3}
    found = seen(store(models=[known(facts)], demands=[demand(waiting=[said, ahead])]))["ns/m"]
    assert (found.waiting, found.waiting_since) == (3, NOW - 40)


@pytest.mark.parametrize(
    ("conditions", "reason", "message"),
    [
        pytest.param([], Reason.READING_HEADER, "its header is being read", id="nothing is said"),
        pytest.param(
            [("HeaderRead", "SourceNotFound", "404")], Reason.SOURCE_NOT_FOUND, "404",
            id="its source is not there",
        ),
        pytest.param(
            [("Accepted", "OfAnotherRelease", "no")], Reason.NEEDS_UNKNOWN, "no",
            id="a reason that this release does not know",
        ),
    ],
)  # fmt: skip
def test_an_unread_header_is_told_as_the_controller_told_it(
    conditions: list[tuple[str, str, str]], reason: Reason, message: str
) -> None:
    said = [
        {"type": kind, "status": "False", "reason": word, "message": text}
        for kind, word, text in conditions
    ]
    found = seen(store(models=[model(status={"conditions": said})]))["ns/m"]
    assert (found.blocked, found.blocked_message, found.needs) == (reason, message, ())


def test_a_host_path_is_what_the_nodes_say(facts: FactsStatus) -> None:
    source = {"path": {"hostPath": "/srv", "path": "m.gguf"}}
    paths = [{"path": "/srv/m.gguf", "facts": facts.wire()}]
    of = store(models=[model(source=source)], inventories=[inventory("a", paths=paths)])
    found = files_of(next(iter(of.models)), of, {})
    assert (found.local_nodes, found.mount and found.mount.host_path) == ({"a"}, "/srv")


def test_a_claim_is_mounted_where_its_volume_is(facts: FactsStatus) -> None:
    source = {"path": {"persistentVolumeClaim": "c", "path": "m.gguf"}}
    of = store(models=[model(source=source)], nodes=[node("a"), node("b")])
    terms = replace(TERMS, volumes={"ns/c": Volume(terms=((here("b"),),))})
    read = {source_hash(next(iter(of.models))): facts}
    assert look(of, terms, read).state.models[0].local_nodes == {"b"}
    assert look(of, TERMS, read).state.models[0].local_nodes is None


def here(name: str) -> Requirement:
    return Requirement("metadata.name", "In", (name,), field=True)


def test_only_what_decides_something_is_priced(facts: FactsStatus) -> None:
    idle, loaded = known(facts, "idle"), known(facts, "loaded")
    kept, awaited = known(facts, "kept", minReplicas=1), known(facts, "awaited")
    asked = known(facts, "asked", annotations={"berth.dev/load-requested": "1"})
    of = store(
        models=[idle, loaded, kept, awaited, asked, known(facts, "subject")],
        runners=[runner(of="loaded")],
        demands=[demand("awaited", waiting=[{"gateway": "g", "requests": 1}])],
    )
    assert wanted(of) == {"ns/loaded", "ns/kept", "ns/awaited", "ns/asked"}
    terms = Terms(Settings({}), IMAGES, NOW, frozenset({"ns/subject"}))
    priced = {m.key for m in look(of, terms, {}).state.models if m.needs}
    assert priced == wanted(of) | {"ns/subject"}


def test_where_a_policy_loads_at_start_everything_is_priced(facts: FactsStatus) -> None:
    of = store(models=[known(facts)], residencies=[residency("r", autoload=["Fit"])])
    assert wanted(of) == {"ns/m"}


# What is declared beside what is there.


def declared(of: Store, body: dict[str, Any]) -> Model:
    declare(of, Model.model_validate(body))
    found = of.models.get("ns/m")
    assert found is not None
    return found


def file_model(**spec: Any) -> dict[str, Any]:
    source = {"url": {"uri": "https://files.example/m.gguf"}}
    return {"metadata": {"name": "m", "namespace": "ns"}, "spec": {"source": source, **spec}}


def test_a_new_model_joins_and_can_be_asked_for(facts: FactsStatus) -> None:
    of = store(nodes=[node()], inventories=[inventory()])
    found = declared(of, file_model())
    assert (found.metadata.uid, found.metadata.generation) == ("new/ns/m", 1)
    state = look(of, TERMS, {source_hash(found): facts}).state
    plan = plan_if_asked(state, "ns/m")
    assert [(type(a), a.place.node) for a in plan.actions if hasattr(a, "place")] == [
        (Prepare, "a")
    ]


def test_a_changed_model_keeps_uid_and_status(facts: FactsStatus) -> None:
    of = store(models=[known(facts, minReplicas=2, maxReplicas=2)])
    found = declared(of, file_model(maxReplicas=2, priority=5))
    assert (found.metadata.uid, found.metadata.generation) == ("uid-m", 2)
    assert (found.spec.min_replicas, found.spec.priority) == (2, 5)
    assert found.status.facts == facts


def test_a_model_that_says_the_same_changes_nothing(facts: FactsStatus) -> None:
    of = store(models=[known(facts)])
    assert declared(of, file_model()).metadata.generation == 1


def test_profiles_and_residencies_take_effect(facts: FactsStatus) -> None:
    of = store(models=[known(facts, profile="p")], nodes=[node()], inventories=[inventory()])
    assert seen(of)["ns/m"].blocked is Reason.PROFILE_NOT_FOUND
    meta = {"name": "p", "namespace": "ns"}
    declare(of, Profile.model_validate({"metadata": meta, "spec": {"contextLength": 1024}}))
    host = {"reserve": "9Gi"}
    declare(of, Residency.model_validate({"metadata": {"name": "r"}, "spec": {"host": host}}))
    state = look(of, TERMS, {}).state
    assert "1024 tokens" in state.models[0].needs[0].text
    assert state.nodes[0].policy.host_reserve == 9 * GIB


def test_what_could_not_be_read_is_told(facts: FactsStatus) -> None:
    of = store(models=[known(facts)])
    refusal = Unpriceable(Reason.SOURCE_UNREACHABLE, "no route")
    found = look(of, TERMS, {facts.source_hash: refusal}).state.models[0]
    assert (found.blocked, found.blocked_message) == (Reason.SOURCE_UNREACHABLE, "no route")
