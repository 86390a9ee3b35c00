"""Does a change show its bytes before and after, by model and place, and who would go?"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from berth.cli.compare import Comparison, compare
from berth.cli.diff import comparison_lines
from berth.planner.actions import Drain
from berth.planner.state import State
from berth.reasons import Reason
from builders import NOW, cluster, gib, model, need, node, policy, runner
from fakes.gguf import sparse_llama

TAKEN = str(Path(__file__).parents[1] / "data" / "states" / "one-gpu-taken.json")
GIB = 1 << 30


def changed(before: State, key: str, **fields: object) -> State:
    """The snapshot with one model's fields changed, and its settings with them."""
    models = tuple(
        replace(m, settings_hash="h2", **fields) if m.key == key else m  # type: ignore[arg-type]
        for m in before.models
    )
    return replace(before, models=models)


def lines(before: State, after: State, *keys: str) -> list[str]:
    return comparison_lines(before, compare(before, after, keys))


def test_a_model_that_grows_on_a_full_device_shows_whom_it_would_evict():
    before = cluster(
        node(), model("a", 10), runner("a", 10), model("b", 10, used=NOW - 900), runner("b", 10)
    )
    after = changed(before, "ns/a", needs=(need(16, 2),))
    assert lines(before, after, "ns/a") == [
        "Worst case of one runner",
        "  MODEL   WAY        EACH DEVICE   AFTER    HOST    AFTER   CHANGE",
        "  ns/a    1 device   10 GiB        16 GiB   1 GiB   2 GiB   +7 GiB",
        "",
        "If asked for",
        "  ns/a: Up: model a is up on gpu-1 cuda:0 → again on gpu-1 cuda:0, evicting ns/b",
        "",
        "Worst case of what is loaded",
        "  PLACE          HELD     AFTER    CHANGE   FOR RUNNERS   AFTER",
        "  gpu-1 host     2 GiB    3 GiB    +1 GiB   64 GiB        64 GiB   fits",
        "  gpu-1 cuda:0   20 GiB   26 GiB   +6 GiB   24 GiB        24 GiB   over by 2 GiB",
        "",
        "Would go",
        "  ns/b on gpu-1 cuda:0 (b-0-0) drains: MakeRoom for ns/a",
        "  ns/a on gpu-1 cuda:0 (a-0-0) drains: Replaced",
    ]


def test_one_more_copy_that_is_kept_loaded_counts_where_it_would_go():
    before = cluster(node(gpus=2), model("a", 10), runner("a", 10))
    after = cluster(node(gpus=2), model("a", 10, min_replicas=2, max_replicas=2), runner("a", 10))
    found = compare(before, after, ["ns/a"])
    assert [(p.place, p.held_before, p.held_after) for p in found.places] == [
        ("host", gib(1), gib(2)),
        ("cuda:0", gib(10), gib(20)),
    ]
    assert found.going == ()


def test_a_larger_reserve_shows_the_room_of_each_place_and_who_is_over():
    before = cluster(node(policy=policy()), model("a", 10), runner("a", 10))
    tight = policy(gpu_reserve=gib(20))
    after = cluster(node(policy=tight), model("a", 10), runner("a", 10))
    found = compare(before, after, [])
    (place,) = found.places
    assert (place.place, place.room_before, place.room_after) == ("cuda:0", gib(24), gib(5.6))
    assert place.over == gib(10) - gib(5.6)
    assert [(one.runner.uid, type(one.action)) for one in found.going] == [("r-a", Drain)]


def test_experts_on_the_host_are_charged_in_the_way_that_the_device_could_hold():
    ways = (need(30, 1), need(20, 11))
    before = cluster(node(), model("a", 10), runner("a", 10))
    found = compare(before, changed(before, "ns/a", needs=ways), ["ns/a"])
    assert [(p.place, p.held_after) for p in found.places] == [
        ("host", gib(11)),
        ("cuda:0", gib(20)),
    ]


def test_what_would_happen_anyway_is_not_laid_at_the_changes_door():
    idle = model("b", 4, used=NOW - 5000, idle_timeout_s=60)
    before = cluster(node(), model("a", 10), idle, runner("b", 4, up_since=NOW - 6000))
    assert compare(before, changed(before, "ns/a", needs=(need(12),)), ["ns/a"]).going == ()


def test_nothing_changed_is_said():
    before = cluster(node(), model("a", 10), runner("a", 10))
    assert compare(before, before, []) == Comparison(before, (), (), ())
    assert lines(before, before) == ["Nothing changes: no bytes, no place, no runner."]


# As a person calls it.


@pytest.fixture
def path(tmp_path):
    sparse_llama(tmp_path / "m.gguf", weights=30 * GIB)
    source = {"path": {"hostPath": str(tmp_path), "path": "m.gguf"}}
    meta = {"name": "chat", "namespace": "team"}
    body = {"apiVersion": "berth.dev/v1alpha1", "kind": "Model", "metadata": meta}
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump({**body, "spec": {"source": source}}))
    return str(file)


def test_a_file_is_compared_with_a_snapshot(berth, path):
    result = berth("diff", "-f", path, "--snapshot", TAKEN)
    assert result.exit_code == 0, result.output
    assert "team/chat   1 device   18 GiB" in result.output
    assert (
        "team/chat: Up: model chat is up on gpu-1 cuda:0 → stays up as it is; refused"
        in result.output
    )
    assert "over by " in result.output
    assert "Nothing that is loaded would go for it at once." in result.output


def test_json_has_bytes(berth, path):
    found = json.loads(berth("diff", "-f", path, "--snapshot", TAKEN, "--json").stdout)
    (chat,) = found["models"]
    assert chat["ways"][0]["before"]["gpus"] == [18 * GIB]
    assert chat["ways"][0]["after"]["gpus"][0] > 30 * GIB
    refusal = chat["after"]["refusal"]
    assert refusal["reason"] == Reason.NEVER_FITS
    device = next(place for place in found["places"] if place["place"] == "cuda:0")
    assert device["heldBefore"] == 18 * GIB
    assert device["overBy"] == device["heldAfter"] - device["roomAfter"] > 0
