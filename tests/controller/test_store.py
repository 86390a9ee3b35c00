"""The newest version of an object wins, whoever brought it; what is gone does not come back."""

from typing import Any

from berth.controller.store import Store
from controller.objects import model, node, pod, runner


def _at(obj: dict[str, Any], version: int) -> dict[str, Any]:
    return obj | {"metadata": obj["metadata"] | {"resourceVersion": str(version)}}


def test_an_own_write_overlays_the_store_until_the_watch_shows_a_newer_one() -> None:
    store = Store()
    store.runners.put(_at(runner(stage="Preparing"), 10))
    store.runners.put(_at(runner(stage="Reserved"), 20))
    store.runners.put(_at(runner(stage="Preparing"), 11))
    assert [r.spec.stage for r in store.runners] == ["Reserved"]
    store.runners.put(_at(runner(stage="Preparing"), 21))
    assert [r.spec.stage for r in store.runners] == ["Preparing"]


def test_a_late_event_does_not_revive_what_was_deleted() -> None:
    store = Store()
    store.runners.put(_at(runner(), 10))
    store.runners.drop("ns/m-0", "uid-m-0")
    store.runners.put(_at(runner(), 11))
    assert len(store.runners) == 0


def test_a_successor_of_the_same_name_stays_when_the_old_one_is_told_gone() -> None:
    store = Store()
    store.runners.put(_at(runner(meta={"uid": "old"}), 10))
    store.runners.put(_at(runner(meta={"uid": "new"}), 12))
    store.runners.drop("ns/m-0", "old")
    assert [r.metadata.uid for r in store.runners] == ["new"]


def test_a_list_tells_what_the_watch_missed_but_not_what_is_newer_than_it() -> None:
    store = Store()
    store.models.put(_at(model("old"), 5))
    store.models.put(_at(model("new"), 30))
    store.models.replace([], "20")
    assert [m.metadata.name for m in store.models] == ["new"]
    assert store.models.listed
    assert not store.listed


def test_what_does_not_parse_is_left_out_and_kept_as_broken() -> None:
    store = Store()
    store.models.put(_at(model("bad", source={"url": {"uri": 7}}), 3))
    store.models.put(_at(model("good"), 4))
    assert [m.metadata.name for m in store.models] == ["good"]
    assert [b.name for b in store.models.broken.values()] == ["bad"]
    store.models.put(_at(model("bad"), 5))
    assert store.models.broken == {}
    assert len(store.models) == 2


def test_only_a_difference_that_a_pass_could_read_rings() -> None:
    rings: list[int] = []
    store = Store(lambda: rings.append(1))
    store.pods.put(_at(pod(), 1))
    store.pods.put(_at(pod(), 2))
    store.nodes.put(_at(node(), 3))
    store.nodes.put(_at(node(), 4))
    assert len(rings) == 2
    store.pods.put(_at(pod(ready=False), 5))
    assert len(rings) == 3


def test_figures_that_rise_with_every_token_make_no_pass() -> None:
    rings: list[int] = []
    store = Store(lambda: rings.append(1))

    def working(tokens: int, busy: int) -> dict[str, Any]:
        return runner(status={"agent": {"health": {"tokens": tokens, "busy": busy}}})

    store.runners.put(_at(working(1, 1), 1))
    store.runners.put(_at(working(50, 1), 2))
    assert len(rings) == 1
    store.runners.put(_at(working(60, 0), 3))
    assert len(rings) == 2
    (seen,) = store.runners
    assert seen.status.agent is not None
    assert seen.status.agent.health is not None
    assert seen.status.agent.health.tokens == 60
