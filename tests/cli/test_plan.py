"""Is what the planner would do said in numbers, on a snapshot out of a file?"""

import json
from pathlib import Path

import pytest
import yaml

from berth.planner.snapshot import state_from_json
from fakes.gguf import sparse_llama

STATES = Path(__file__).parents[1] / "data" / "states"
TAKEN, BUSY = str(STATES / "one-gpu-taken.json"), str(STATES / "one-gpu-busy.json")
GIB = 1 << 30
UNTOUCHED = ["", "Nothing was touched."]


def says(result):
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.mark.parametrize("path", sorted(STATES.glob("*.json")), ids=lambda path: path.stem)
def test_a_snapshot_that_is_kept_can_be_read(path):
    assert state_from_json(path.read_text()).models


@pytest.mark.parametrize(
    ("model", "snapshot", "want"),
    [
        pytest.param(
            "team/small", TAKEN,
            [
                "team/small: it would be loaded on gpu-1 cuda:0, which has room",
                "  needs 6 GiB on the device and 1 GiB of the host",
            ],
            id="there is room",
        ),
        pytest.param(
            "team/large", TAKEN,
            [
                "team/large: it would be loaded on gpu-1 cuda:0 once 1 runner there made room",
                "  needs 20 GiB on the device and 1 GiB of the host",
                "  would go: team/chat on gpu-1 cuda:0 (team/chat-0-0), unused for 10 min,"
                " holds 18 GiB of devices and 1 GiB of the host",
            ],
            id="an idle runner has to go",
        ),
        pytest.param(
            "team/away", TAKEN,
            [
                "team/away: its files would be fetched to gpu-1 for gpu-1 cuda:0;"
                " nobody is touched before",
                "  needs 20 GiB on the device and 1 GiB of the host",
                "  then, as things are now: it would be loaded on gpu-1 cuda:0"
                " once 1 runner there made room",
                "  would go: team/chat on gpu-1 cuda:0 (team/chat-0-0), unused for 10 min,"
                " holds 18 GiB of devices and 1 GiB of the host",
            ],
            id="files are fetched before anybody is touched",
        ),
        pytest.param(
            "team/huge", TAKEN,
            [
                "team/huge: refused (InsufficientCapacity), and no wait will help: model huge needs"
                " 60 GiB; the largest berth is gpu-1 cuda:0 with 24 GiB even when empty",
                "  REASON                 PLACE          NEEDS    HAS      OF       SHORT BY   MESSAGE",
                "  InsufficientCapacity   gpu-1 cuda:0   60 GiB   24 GiB   24 GiB   36 GiB"
                "     needs 60 GiB of cuda:0, 24 GiB when empty",
            ],
            id="it can never fit",
        ),
        pytest.param(
            "team/chat", TAKEN,
            ["team/chat: Up: model chat is up on gpu-1 cuda:0"],
            id="it is up already",
        ),
        pytest.param(
            "team/off", BUSY,
            ["team/off: Down (Suspended): model off is suspended"],
            id="it is suspended",
        ),
    ],
)  # fmt: skip
def test_a_declared_model_is_planned(berth, model, snapshot, want):
    assert says(berth("plan", model, "--snapshot", snapshot)) == [*want, *UNTOUCHED]


def test_a_model_that_is_kept_out_is_explained_by_who_keeps_it(berth):
    assert says(berth("explain", "team/code", "--snapshot", BUSY)) == [
        "team/code: refused (RunnersBusy); it would wait: model code needs 20 GiB; the largest free"
        " berth is gpu-1 cuda:0 with 6 GiB, the rest is held by runners in use",
        "  REASON        PLACE          NEEDS    HAS     OF       SHORT BY   MESSAGE",
        "  RunnersBusy   gpu-1 cuda:0   20 GiB   6 GiB   24 GiB   14 GiB     needs 20 GiB,"
        " 6 GiB free of 24 GiB",
        "",
        "What it would take",
        "  14 GiB more on gpu-1 cuda:0: it needs 20 GiB, 6 GiB is to be had",
        "  team/chat holds 14 GiB of devices and 1 GiB of the host: it has 2 requests in hand",
        "  team/pin holds 4 GiB of devices and 1 GiB of the host: it is pinned",
    ]


def test_json_has_bytes_and_the_planners_own_words(berth):
    found = json.loads(berth("plan", "team/large", "--snapshot", TAKEN, "--json").stdout)
    (large,) = found["models"]
    assert (large["state"], large["reason"], large["refusal"]) == ("Waiting", "Reserved", None)
    assert large["placed"][0]["place"] == {"node": "gpu-1", "devices": ["GPU-gpu-1-0"]}
    (victim,) = large["victims"]
    assert (victim["model"], victim["idleSeconds"]) == ("team/chat", 600.0)
    assert victim["claim"] == {"host": GIB, "devices": [["GPU-gpu-1-0", 18 * GIB]]}
    assert [action["action"] for action in found["actions"]] == ["Reserve", "Drain"]


# Models of a file.


@pytest.fixture
def manifest(tmp_path):
    """Writes objects into a file, the weights of Models beside it; gives its path."""

    def write(*objects, weights=8 * GIB):
        sparse_llama(tmp_path / "m.gguf", weights=weights)
        path = tmp_path / "objects.yaml"
        path.write_text(yaml.safe_dump_all(objects))
        return str(path)

    return write


def declared(kind, name, **spec):
    return {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "team"},
        "spec": spec,
    }


def local(tmp_path):
    return {"path": {"hostPath": str(tmp_path), "path": "m.gguf"}}


def test_a_model_of_a_file_is_priced_by_its_header(berth, manifest, tmp_path):
    profile = declared("Profile", "p", contextLength=8192, parallel=2)
    path = manifest(declared("Model", "new", source=local(tmp_path), profile="p"), profile)
    lines = says(berth("plan", "-f", path, "--snapshot", TAKEN))
    assert lines[0] == "team/new: it would be loaded on gpu-1 cuda:0 once 1 runner there made room"
    assert "for 16384 tokens of context (weights 9.33 GiB, KV cache 648 MiB" in lines[1]
    assert lines[2].startswith("  would go: team/chat")


def test_a_model_of_a_file_takes_the_place_of_its_namesake(berth, manifest, tmp_path):
    path = manifest(declared("Model", "small", source=local(tmp_path)), weights=40 * GIB)
    lines = says(berth("plan", "-f", path, "--snapshot", TAKEN))
    assert lines[0].startswith("team/small: refused (InsufficientCapacity), and no wait will help")


def test_a_copy_of_the_weights_stands_for_a_source_out_of_reach(berth, manifest, tmp_path):
    source = {"path": {"persistentVolumeClaim": "models", "path": "m.gguf"}}
    path = manifest(declared("Model", "new", source=source), weights=2 * GIB)
    there = berth("plan", "-f", path, "--snapshot", TAKEN, "--weights", str(tmp_path / "m.gguf"))
    assert "team/new: it would be loaded on gpu-1 cuda:0, which has room" in says(there)
    away = says(berth("plan", "-f", path, "--snapshot", TAKEN))[0]
    assert away == (
        "team/new: Waiting (NeedsUnknown): its weights cannot be seen from here:"
        " name a local copy with --weights"
    )


def test_a_field_that_is_none_is_told(berth, manifest, tmp_path):
    path = manifest(
        declared("Model", "new", source=local(tmp_path), overrides={"contextLenght": 5})
    )
    result = berth("plan", "-f", path, "--snapshot", TAKEN)
    assert result.stderr == (
        "Note: Model new: spec.overrides.contextLenght is no field and is ignored.\n"
    )


@pytest.mark.parametrize(
    ("objects", "wants"),
    [
        pytest.param([{"kind": "Pod"}], ["it declares no Model, Profile or Residency"], id="a pod"),
        pytest.param(
            [declared("Model", "m", source={})], ["reading Model m of", "exactly one of"],
            id="no source",
        ),
        pytest.param(
            [declared("Model", "m", source={"url": {"uri": "x"}})], ["spec.source.url.uri"],
            id="a wrong field is named by its path",
        ),
        pytest.param(
            [declared("Residency", "r", maxRunners=1)],
            ["declares a Residency", "leave --snapshot out"],
            id="a snapshot holds no policies",
        ),
        pytest.param(
            [declared("Profile", "p", parallel=2)], ["no declared Model changes by it"],
            id="a profile that nobody uses",
        ),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_planned_says_why(berth, manifest, objects, wants):
    result = berth("plan", "-f", manifest(*objects), "--snapshot", TAKEN)
    assert result.exit_code == 1
    assert [want for want in wants if want not in result.stderr] == []


@pytest.mark.parametrize(
    ("args", "wants"),
    [
        pytest.param(["plan"], ["either a MODEL", "berth plan -f model.yaml"], id="nothing named"),
        pytest.param(
            ["plan", "x", "--snapshot", TAKEN],
            ["planning model default/x", "there are: team/away, team/chat"],
            id="no such model",
        ),
        pytest.param(
            ["explain", "x", "--snapshot", "/nowhere.json"],
            ["reading the snapshot /nowhere.json", "No such file", "berth snapshot > s.json"],
            id="no such snapshot",
        ),
        pytest.param(
            ["plan", "-f", "/nowhere.yaml"], ["reading /nowhere.yaml", "No such file"],
            id="no such file",
        ),
    ],
)  # fmt: skip
def test_an_error_says_what_was_attempted_what_is_wrong_and_what_to_do(berth, args, wants):
    result = berth(*args)
    assert result.exit_code == 1
    assert [want for want in wants if want not in result.stderr] == []
