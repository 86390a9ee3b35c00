"""Whose saved sessions does a runner find again?"""

import json

import pytest

from berth.manifests.pod import PodSettings, runner_config, runner_pod
from berth.manifests.sessions import session_folder
from berth.runner.config import SessionStore, parse_config
from manifests.test_pod import runner

SAVING = ["llama-server", "--slot-save-path", "/sessions"]


def saving(**spec):
    return runner(**{"command": SAVING, "settingsHash": "s", **spec})


def test_a_runner_of_the_same_files_settings_and_image_finds_them_again():
    assert session_folder(saving(attempt=3)) == session_folder(saving(attempt=4))
    assert session_folder(saving()).startswith("m-1/")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"files": [{"name": "gemma.gguf", "size": 253, "sha256": "cd"}]}, id="files"),
        pytest.param({"settingsHash": "t"}, id="settings"),
        pytest.param({"image": "localhost/berth/llamacpp:2"}, id="image"),
        pytest.param({"ordinal": 1}, id="another copy of the model"),
        pytest.param({"modelRef": {"name": "gemma", "uid": "m-2"}}, id="another model"),
    ],
)
def test_any_other_has_a_folder_of_its_own(other):
    assert session_folder(saving(**other)) != session_folder(saving())


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"command": ["llama-server"]}, id="an engine that saves none"),
        pytest.param(
            {"command": ["llama-server", "--slot-save-path", "/tmp"]}, id="a folder of one's own"
        ),
        pytest.param(
            {"files": [{"name": "m", "size": 1}]}, id="files that could change without a digest"
        ),
        pytest.param({"files": []}, id="no files"),
    ],
)
def test_there_is_no_folder_for(spec):
    made = saving(**spec)
    assert session_folder(made) == ""
    assert "sessions" not in runner_config(made)
    assert len(runner_pod(made)["spec"]["volumes"]) == 2


def test_the_pod_mounts_its_own_folder_alone_and_may_write_there():
    spec = runner_pod(saving())["spec"]
    csi = {
        "driver": "store.berth.dev",
        "readOnly": False,
        "volumeAttributes": {"volume": "sessions"},
    }
    assert spec["volumes"][2] == {"name": "sessions", "csi": csi}
    assert spec["containers"][0]["volumeMounts"][2] == {
        "name": "sessions",
        "mountPath": "/sessions",
    }


def test_without_the_driver_the_folder_is_a_host_path():
    volume = runner_pod(saving(), PodSettings(store_volume="hostPath"))["spec"]["volumes"][2]
    path = f"/var/lib/berth/sessions/{session_folder(saving())}"
    assert volume == {"name": "sessions", "hostPath": {"path": path, "type": "Directory"}}


def test_the_container_understands_where_and_how_much():
    config = runner_config(saving(), PodSettings(session_limit=7))
    assert parse_config(json.dumps(config)).sessions == SessionStore("/sessions", 7)
