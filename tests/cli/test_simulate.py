"""Does a simulation tell what the planner would do, the same each time, and never what cannot be?"""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cli.simulation.fleet import DEFAULTS, Fleet
from berth.cli.simulation.report import moment, percentile
from berth.cli.simulation.trace import Request
from berth.cli.simulation.world import World
from berth.planner.arithmetic import rooms
from builders import GIB, cluster, model, node, policy, runner
from fakes.gguf import sparse_llama

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "simulate"
TAKEN = str(ROOT / "tests" / "data" / "states" / "one-gpu-taken.json")


class Checked(World):
    """A world that is looked at whenever a plan is made."""

    def state(self):
        state = super().state()
        for at in state.nodes:
            pods = [r for r in state.runners if r.node == at.name and r.pod_exists]
            for place, room in rooms(at, pods).items():
                assert room.free >= 0, f"{at.name} {place} is over by {-room.free}"
        return state


def played(*parts, requests=(), spans=DEFAULTS, timeout=900.0):
    """The tallies of a small cluster's requests ``(at, model, seconds)``."""
    state = cluster(*parts)
    fleet = Fleet(state, {m.key: spans for m in state.models}, timeout)
    world = Checked(fleet, [Request(at, f"ns/{name}", seconds) for at, name, seconds in requests])
    world.run()
    return world


def told(world):
    return [(h.at - world._start.now, h.what, h.model) for h in world.happenings]


def test_a_cold_start_waits_for_the_load_and_a_warm_one_for_nothing():
    world = played(node(), model("a"), requests=[(0, "a", 5), (40, "a", 5)])
    tally = world.tallies["ns/a"]
    assert (tally.requests, tally.served, tally.loads, tally.waits) == (2, 2, 1, [30.0, 0.0])
    assert told(world) == [(0.0, "load", "ns/a"), (30.0, "up", "ns/a")]


def test_files_that_are_not_there_are_fetched_before():
    files = (("sha", 1),)
    world = played(node(), model("a", files=files), requests=[(0, "a", 5)])
    assert world.tallies["ns/a"].waits == [DEFAULTS.fetch + DEFAULTS.load]


def test_an_idle_model_makes_room_and_its_end_is_waited_for():
    requests = [(0, "a", 5), (100, "b", 5)]
    world = played(node(), model("a", 20), model("b", 20), requests=requests)
    # 2 s of quiet, 5 s to stop, 2 s for the memory to settle, 30 s to load.
    assert world.tallies["ns/b"].waits == [39.0]
    assert [what for _, what, _ in told(world)] == ["load", "up", "evict", "load", "up"]
    assert (world.tallies["ns/a"].evicted, world.tallies["ns/b"].evicted) == (1, 0)


def test_what_can_never_fit_is_refused_at_once_with_numbers():
    world = played(node(), model("a", 90), requests=[(0, "a", 5), (1, "a", 5)])
    assert (world.tallies["ns/a"].refused, world.tallies["ns/a"].loads) == (2, 0)
    assert "needs 90 GiB; the largest berth is gpu-1 cuda:0 with 24 GiB" in world.happenings[0].text


def test_who_waits_too_long_gives_up():
    pinned = model("b", 20, pinned=True)
    busy = [(0, "b", 4000)]
    world = played(
        node(), model("a", 20), model("b", 20), requests=[*busy, (100, "a", 5)], timeout=300
    )
    assert (world.tallies["ns/a"].gave_up, world.tallies["ns/b"].served) == (1, 1)
    world = played(node(), model("a", 20), pinned, requests=[(0, "b", 1), (100, "a", 5)])
    assert world.tallies["ns/a"].refused == 1


def test_as_many_requests_as_slots_are_answered_at_once():
    requests = [(0, "a", 10)] * 4
    world = played(node(), model("a", parallel=2), requests=requests)
    assert world.tallies["ns/a"].waits == [30.0, 30.0, 40.0, 40.0]


def test_an_answer_that_takes_no_time_keeps_nobody_waiting():
    requests = [(0, "a", 6), (1, "a", 0), (1, "a", 5)]
    world = played(node(), model("a"), requests=requests)
    assert world.tallies["ns/a"].waits == [30.0, 35.0, 35.0]
    assert played(node(), model("a"), requests=[(0, "a", 0)]).tallies["ns/a"].served == 1


def test_what_is_unused_is_unloaded():
    requests = [(0, "a", 1), (500, "b", 1)]
    world = played(node(gpus=2), model("a", idle_timeout_s=60), model("b"), requests=requests)
    assert (world.tallies["ns/a"].unloaded, world.tallies["ns/a"].evicted) == (1, 0)


def test_a_snapshot_starts_with_what_is_loaded():
    world = played(node(), model("a", 10), runner("a", 10), requests=[(0, "a", 5)])
    assert (world.tallies["ns/a"].waits, world.tallies["ns/a"].loads) == ([0.0], 0)


FLEETS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([12.8, 25.6])), min_size=1, max_size=3
)
MODELS = st.lists(
    st.tuples(
        st.sampled_from([2.0, 8.0, 12.0, 20.0]),
        st.integers(0, 1),
        st.integers(1, 2),
        st.sampled_from([60.0, 1800.0]),
    ),
    min_size=1,
    max_size=5,
)
REQUESTS = st.lists(st.tuples(st.floats(0, 600), st.integers(0, 4), st.floats(0, 90)), max_size=30)


@settings(max_examples=60)
@given(FLEETS, MODELS, REQUESTS, st.sampled_from([0, 0, 1, 2]))
def test_every_request_is_accounted_for_and_no_place_is_ever_over(sizes, models, drawn, cap):
    group = policy(max_runners=cap)
    parts = [node(f"n{i}", gpus=n, gpu=gpu, policy=group) for i, (n, gpu) in enumerate(sizes)]
    parts += [
        model(f"m{i}", gpu, min_replicas=kept, parallel=slots, idle_timeout_s=idle)
        for i, (gpu, kept, slots, idle) in enumerate(models)
    ]
    requests = sorted((at, f"m{which % len(models)}", s) for at, which, s in drawn)
    one, two = (played(*parts, requests=requests) for _ in range(2))
    assert (one.tallies, one.happenings) == (two.tallies, two.happenings)
    for tally in one.tallies.values():
        assert tally.requests == tally.served + tally.refused + tally.gave_up
        assert len(tally.waits) == tally.served


def test_percentiles_are_those_of_the_nearest_rank():
    waits = [float(n) for n in range(1, 21)]
    assert [percentile(waits, share) for share in (0.5, 0.95, 1.0)] == [10.0, 19.0, 20.0]
    assert (percentile([7.0], 0.95), percentile([], 0.5)) == (7.0, 0.0)
    assert moment(3725.9) == "1:02:05"


# Files.


@pytest.fixture
def simulate(berth, tmp_path):
    """`berth simulate` on a fleet and a trace that are given as values."""

    def call(fleet, trace, *args, objects=()):
        (tmp_path / "fleet.yaml").write_text(yaml.safe_dump_all([fleet, *objects]))
        (tmp_path / "trace.yaml").write_text(yaml.safe_dump(trace))
        paths = ("-f", str(tmp_path / "fleet.yaml"), "--trace", str(tmp_path / "trace.yaml"))
        return berth("simulate", *paths, *args)

    return call


ONE_GPU = [{"name": "n", "memory": "64Gi", "gpus": "1x24Gi"}]


def test_the_example_says_what_its_page_shows(berth):
    files = ("-f", str(EXAMPLE / "fleet.yaml"), "--trace", str(EXAMPLE / "trace.yaml"))
    result = berth("simulate", *files)
    assert result.exit_code == 0, result.output
    page = (ROOT / "docs" / "how-to" / "plan-and-simulate.md").read_text()
    assert f"```text\n{result.stdout}```" in page
    assert berth("simulate", *files).stdout == result.stdout


def test_json_tells_every_happening(simulate):
    fleet = {"nodes": ONE_GPU, "models": [{"name": "a", "gpu": "8Gi", "load": "7s"}]}
    result = simulate(fleet, [{"at": 3, "model": "a", "seconds": 2}], "--json")
    assert json.loads(result.stdout) == {
        "seconds": 12.0,
        "total": (
            whole := {
                "requests": 1, "served": 1, "refused": 0, "gaveUp": 0, "loads": 1, "evicted": 0,
                "unloaded": 0, "wait": {"p50": 7.0, "p95": 7.0, "max": 7.0},
            }
        ),
        "models": {"default/a": whole},
        "happenings": [
            {"at": 3.0, "what": "load", "model": "default/a", "text": "n cuda:0"},
            {"at": 10.0, "what": "up", "model": "default/a", "text": "n cuda:0"},
        ],
    }  # fmt: skip


def test_a_trace_may_be_json_lines_and_the_fleet_a_snapshot(berth, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0, "model": "small"}\n\n{"at": "1m", "model": "team/large"}\n')
    result = berth("simulate", "--snapshot", TAKEN, "--trace", str(trace), "--timeline")
    assert result.exit_code == 0, result.output
    assert "2 requests over" in result.stdout
    assert "2 evictions" in result.stdout
    assert "evict   team/chat    gpu-1 cuda:0 for team/large" in result.stdout


def test_models_and_policies_may_be_the_clusters_own_objects(simulate, tmp_path):
    sparse_llama(tmp_path / "m.gguf", weights=4 * GIB)
    api = {"apiVersion": "berth.dev/v1alpha1"}
    path = {"hostPath": str(tmp_path), "path": "m.gguf"}
    real = {
        **api,
        "kind": "Model",
        "metadata": {"name": "real"},
        "spec": {"source": {"path": path}},
    }
    cap = {**api, "kind": "Residency", "metadata": {"name": "r"}, "spec": {"maxRunners": 1}}
    fleet = {
        "nodes": ONE_GPU,
        "models": [{"name": "real", "load": "9s"}, {"name": "other", "gpu": "1Gi"}],
    }
    trace = [{"model": "real", "at": 0}, {"model": "other", "at": "2m"}]
    result = simulate(fleet, trace, "--json", objects=[real, cap])
    found = json.loads(result.stdout)["models"]
    assert found["default/real"]["wait"]["max"] == 9.0
    assert found["default/real"]["evicted"] == 1  # the cap, not memory


def test_nodes_can_be_counted_and_on_cpus_alone(simulate):
    fleet = {
        "nodes": [{"name": "n", "count": 2, "memory": "32Gi"}],
        "models": [{"name": name, "host": "20Gi"} for name in "ab"],
    }
    trace = [{"model": "a"}, {"model": "b"}]
    happenings = json.loads(simulate(fleet, trace, "--json").stdout)["happenings"]
    assert sorted(h["text"] for h in happenings if h["what"] == "load") == ["n-1 host", "n-2 host"]


@pytest.mark.parametrize(
    ("fleet", "trace", "wants"),
    [
        pytest.param({"models": []}, [], ["nodes", "plan-and-simulate.md"], id="no nodes"),
        pytest.param(
            {"nodes": ONE_GPU, "models": [{"name": "a"}]}, [], ["neither gpu nor host"],
            id="a model without a size",
        ),
        pytest.param(
            {"nodes": [{"name": "n", "memory": "1Gi", "gpus": "two"}]}, [], ["node n", "2x24GiB"],
            id="no such gpus",
        ),
        pytest.param(
            {"nodes": ONE_GPU, "settings": {"FAIRNES": 1}}, [], ["FAIRNES is none"],
            id="no such setting",
        ),
        pytest.param(
            {"nodes": ONE_GPU, "models": [{"name": "a", "gpu": "1Gi"}]}, [{"model": "b"}],
            ["entry 1 of the trace", "no model b", "default/a"],
            id="no such model",
        ),
        pytest.param(
            {"nodes": ONE_GPU, "models": [{"name": "a", "gpu": "1Gi"}]},
            [{"model": "a", "sec": 1}], ["entry 1", "sec"],
            id="no such field of a request",
        ),
        pytest.param({"nodes": ONE_GPU}, {"rows": []}, ["no list of requests"], id="no requests"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_told_with_its_place(simulate, fleet, trace, wants):
    result = simulate(fleet, trace)
    assert result.exit_code == 1
    assert [want for want in wants if want not in result.stderr] == []


def test_a_fleet_must_be_named(berth):
    result = berth("simulate", "--trace", "x")
    assert "either -f or --snapshot" in result.stderr
