"""Does a dry run print what the controller would create?"""

import json

import pytest
import yaml

from berth.cli.render import NO_UID
from fakes.gguf import sparse_llama

GIB = 1 << 30


@pytest.fixture
def file(tmp_path):
    """Writes a Model with these spec fields, and a Profile `p`; gives the path."""

    def write(**spec):
        sparse_llama(tmp_path / "m.gguf", weights=2 * GIB)
        source = {"path": {"hostPath": str(tmp_path), "path": "m.gguf"}}
        api = {"apiVersion": "berth.dev/v1alpha1"}
        meta = {"namespace": "team"}
        objects = [
            {
                **api,
                "kind": "Model",
                "metadata": {"name": "m", **meta},
                "spec": {"source": source} | spec,
            },
            {**api, "kind": "Profile", "metadata": {"name": "p", **meta}, "spec": {"parallel": 3}},
        ]
        path = tmp_path / "m.yaml"
        path.write_text(yaml.safe_dump_all(objects))
        return str(path)

    return write


def test_runner_and_pod_are_printed_with_what_they_need(berth, file):
    result = berth("render", "-f", file(profile="p"))
    assert result.exit_code == 0, result.output
    notes = [line for line in result.stdout.splitlines() if line.startswith("# ")]
    assert notes[0] == (
        "# team/m: no place was planned for it: its node and devices stand for themselves"
    )
    assert "for 12288 tokens of context" in notes[1]
    assert notes[2].startswith("# the engine's command: llama-server --model /models/m.gguf")
    runner, pod = yaml.safe_load_all(result.stdout)
    spec = runner["spec"]
    assert (runner["kind"], runner["metadata"]["name"][:2]) == ("Runner", "m-")
    assert (spec["parallel"], spec["stage"], spec["nodeName"]) == (3, "Reserved", "node")
    assert spec["claim"]["devices"][0]["memory"] > 2 * GIB > spec["claim"]["host"]
    assert pod["metadata"]["name"] == runner["metadata"]["name"]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == NO_UID
    (engine,) = pod["spec"]["containers"]
    assert engine["image"] == "not-known/llamacpp/cuda"
    assert json.loads(engine["env"][0]["value"])["engine"] == spec["command"]


def test_a_node_and_a_device_can_be_asked_for(berth, file):
    result = berth("render", "-f", file(), "--device", "cpu", "--node", "n1", "--json")
    runner, pod = json.loads(result.stdout)
    assert (runner["spec"]["nodeName"], runner["spec"]["claim"]["devices"]) == ("n1", [])
    assert runner["spec"]["claim"]["host"] > 2 * GIB
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in pod["spec"]["containers"][0][
        "env"
    ]


def test_an_image_that_is_set_is_used(berth, file, monkeypatch):
    monkeypatch.setenv("BERTH_RUNNER_IMAGES", "llamacpp/cpu=here:1")
    runner, _ = json.loads(berth("render", "-f", file(device="cpu"), "--json").stdout)
    assert runner["spec"]["image"] == "here:1"


def test_files_that_are_fetched_do_not_lie_where_a_local_copy_does(berth, file, tmp_path):
    path = file(source={"url": {"uri": "https://files.example/m.gguf"}})
    args = ("render", "-f", path, "--weights", str(tmp_path / "m.gguf"), "--json")
    runner, pod = json.loads(berth(*args).stdout)
    assert runner["spec"]["files"][0]["url"] == ""
    assert pod["spec"]["volumes"][0]["csi"]["volumeAttributes"] == {"volume": "weights"}


@pytest.mark.parametrize(
    ("spec", "wants"),
    [
        pytest.param(
            {"profile": "none"}, ["no profile none", "put the Profile into the same file"],
            id="its profile is not there",
        ),
        pytest.param(
            {"source": {"path": {"persistentVolumeClaim": "c", "path": "m.gguf"}}},
            ["cannot be seen from here", "--weights"],
            id="its files are on a claim",
        ),
        pytest.param(
            {"overrides": {"args": ["--cache-ram", "lots"]}}, ["lots", "correct what is wrong"],
            id="a flag is wrong",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_rendered_says_what_is_missing(berth, file, spec, wants):
    result = berth("render", "-f", file(**spec))
    assert result.exit_code == 1
    assert [want for want in ["rendering model team/m", *wants] if want not in result.stderr] == []


def test_one_thing_at_a_time_is_rendered(berth):
    assert "either a MODEL that is declared or a file" in berth("render").stderr


def test_every_setting_is_shown_with_its_origin(berth, file):
    path = file(profile="p", overrides={"args": ["-b", "256"], "batchSize": 512})
    rows = json.loads(berth("describe", "settings", "-f", path, "--json").stdout)
    assert (rows["model"], rows["runtime"], rows["hardware"]) == ("team/m", "llamacpp", "cuda")
    assert {row["setting"]: (row["value"], row["origin"]) for row in rows["settings"]} == {
        "args": ("-b 256", "model m"),
        "batchSize": ("512", "model m"),
        "contextLength": ("4096", "cluster"),
        "parallel": ("3", "profile p"),
        "-b": ("256", "args of model m, over batchSize"),
    }
    text = berth("describe", "settings", "-f", path).stdout
    assert "Warning: -b 256 hides batchSize, which is set too." in text
    notes = berth("render", "-f", path).stdout
    assert "# parallel: 3  (profile p)" in notes
    assert "# warning: -b 256 hides batchSize, which is set too" in notes


def test_settings_of_hardware_that_its_runtime_does_not_run_on(berth, file):
    path = file(overrides={"runtime": "sglang"})
    result = berth("describe", "settings", "-f", path)
    assert result.exit_code == 1
    assert "sglang loads safetensors files" in result.stderr
