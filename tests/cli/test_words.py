"""Do commands say the right thing of what the objects say? No cluster is asked."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from berth.api.model import Model
from berth.api.runner import Runner
from berth.cli.explain import Explanation, explanation_lines
from berth.cli.load import Ended, is_unloaded, judge_load, judge_unload
from berth.cli.main import COMMANDS, main
from berth.cli.show import table_lines

NOW = 1_767_225_660.0
A_MINUTE_AGO = "2026-01-01T00:00:00Z"
ASKED = "2026-01-01T00:00:00.000001Z"


def model(state=None, message="", **status):
    conditions = [{"type": "Ready", "status": "False", "reason": state, "message": message}]
    return Model.model_validate(
        {
            "metadata": {"name": "gemma", "namespace": "team", "generation": 1},
            "spec": {"source": {"url": {"uri": "https://example.org/m.gguf"}}},
            "status": {"conditions": conditions if state else [], **status},
        }
    )


NEVER = {"reason": "InsufficientCapacity", "message": "needs 41 GiB; the largest has 24 GiB"}
BUSY = {"reason": "RunnersBusy", "message": "all are busy"}


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(model("Up"), Ended(), id="up, whoever asked"),
        pytest.param(model("Starting", loadHandled=ASKED), None, id="on its way"),
        pytest.param(
            model("Failed", "bad header", loadHandled="earlier"), None, id="failed before we asked"
        ),
        pytest.param(
            model("Failed", "bad header", loadHandled=ASKED), Ended("bad header"), id="failed"
        ),
        pytest.param(
            model("Waiting", loadHandled=ASKED, lastRefusal=NEVER),
            Ended("needs 41 GiB; the largest has 24 GiB"),
            id="fits nowhere",
        ),
        pytest.param(
            model("Waiting", loadHandled=ASKED, lastRefusal=BUSY), None, id="fits once others end"
        ),
        pytest.param(model(), None, id="never seen by the controller"),
    ],
)
def test_a_wait_for_a_load_ends_when_its_end_is_known(seen, want):
    assert judge_load(seen, ASKED) == want


RUNNER = {"name": "gemma-0", "state": "Draining"}


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(model("Up", unloadHandled=ASKED, runners=[RUNNER]), None, id="draining"),
        pytest.param(model("Down", unloadHandled=ASKED), Ended(), id="gone"),
        pytest.param(model("Down", unloadHandled="earlier"), None, id="gone by another request"),
    ],
)
def test_a_wait_for_an_unload_ends_when_no_runner_is_left(seen, want):
    assert judge_unload(seen, ASKED) == want


def test_a_model_on_its_way_is_not_unloaded():
    assert not is_unloaded(model("Waiting"))
    assert is_unloaded(model("Down"))
    assert is_unloaded(model())


def test_a_refusal_is_explained_with_the_arithmetic_of_every_place():
    refused = model(
        "Waiting",
        "gemma needs 41.2 GiB; the largest free berth is gpu-1 cuda:0 with 24 GiB",
        needs={"text": "41.2 GiB for 8192 tokens of context"},
        lastUsed=A_MINUTE_AGO,
        lastRefusal={
            "reason": "InsufficientCapacity",
            "message": "it fits nowhere",
            "at": A_MINUTE_AGO,
            "places": [
                {
                    "reason": "Memory",
                    "count": 3,
                    "node": "gpu-1",
                    "device": "cuda:0",
                    "need": 44_238_000_000,
                    "have": 25_769_803_776,
                    "capacity": 25_769_803_776,
                },
                {"reason": "CPURunnersNotAllowed", "count": 2, "node": "cpu-1"},
            ],
        },
    )
    assert explanation_lines(Explanation(refused, waiting=2, runners=()), NOW) == [
        "team/gemma is Waiting: gemma needs 41.2 GiB; the largest free berth is gpu-1 cuda:0 with 24 GiB",
        "  needs 41.2 GiB for 8192 tokens of context",
        "  2 requests wait for it",
        "  last used 60 s ago",
        "",
        "Last refusal (60 s ago): it fits nowhere",
        "  REASON                 PLACES   BEST EXAMPLE   NEEDS      HAS      OF       MESSAGE",
        "  Memory                 3        gpu-1 cuda:0   41.2 GiB   24 GiB   24 GiB   -",
        "  CPURunnersNotAllowed   2        cpu-1          -          -        -        -",
        "",
        "What to do",
        "  - use a smaller model, quantisation or context, or a node with more memory",
        "  - allow CPU runners in the Residency (cpuRunners: Always), or add a GPU",
    ]


def test_a_runner_that_is_not_admitted_is_explained_by_its_agent():
    runner = Runner.model_validate(
        {
            "metadata": {"name": "gemma-0", "namespace": "team"},
            "spec": {"modelRef": {"name": "gemma", "uid": "u"}, "nodeName": "a"},
            "status": {
                "state": "Reserved",
                "agent": {
                    "admission": {
                        "state": "Refused",
                        "at": A_MINUTE_AGO,
                        "expiresAt": A_MINUTE_AGO,
                        "passId": "p",
                        "reason": "HostMemory",
                        "need": 2 << 30,
                        "have": 1 << 30,
                    }
                },
            },
        }
    )
    lines = explanation_lines(Explanation(model("Starting"), waiting=0, runners=(runner,)), NOW)
    assert lines[-2:] == [
        "  NAME      STATE      NODE   MESSAGE",
        "  gemma-0   Reserved   a      HostMemory: needs 2 GiB, has 1 GiB",
    ]


def test_a_model_that_nobody_has_seen_points_at_the_doctor():
    assert explanation_lines(Explanation(model(), 0, ()), NOW) == [
        "team/gemma has not been seen by the controller yet (`berth doctor`)"
    ]


def test_an_empty_cell_is_shown():
    assert table_lines(("a", "b"), [("1", ""), ("long", "2")]) == [
        "A      B",
        "1      -",
        "long   2",
    ]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name):
    answer = CliRunner().invoke(main, [name, "--help"], catch_exceptions=False)
    assert answer.exit_code == 0
    assert answer.output.startswith(f"Usage: main {name}")


@pytest.mark.parametrize(
    ("command", "absent"),
    [
        pytest.param("fit", ("kubernetes", "kopf", "aiohttp"), id="fit needs no cluster"),
        pytest.param("gateway", ("kopf", "kubernetes"), id="nor does choosing a program"),
        pytest.param("settings", ("kubernetes", "kopf"), id="settings neither"),
        pytest.param("models", ("kopf",), id="no command but controller needs kopf"),
    ],
)
def test_a_command_imports_only_what_it_needs(command, absent):
    """In a process of its own, for this one has imported everything."""
    program = (
        "import sys\n"
        "from berth.cli.main import main\n"
        f"main.get_command(None, {command!r})\n"
        f"sys.exit(', '.join(m for m in {absent!r} if m in sys.modules) or 0)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr


def test_a_program_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "berth.gateway.main", None)
    answer = CliRunner().invoke(main, ["gateway"])
    assert answer.exit_code == 1
    assert "install berth-operator[gateway]" in answer.output


def test_settings_show_what_is_in_effect(monkeypatch):
    monkeypatch.setenv("BERTH_IDLE_TIMEOUT", "10m")
    answer = CliRunner().invoke(main, ["settings"])
    row = next(line for line in answer.output.splitlines() if "BERTH_IDLE_TIMEOUT" in line)
    assert row.split()[1:3] == ["10m", "30m"]


@pytest.mark.parametrize(
    ("args", "wants"),
    [
        pytest.param(
            ["models", "--kubeconfig", "/nowhere"],
            ["no context in /nowhere", "--kubeconfig or KUBECONFIG"],
            id="no kubeconfig",
        ),
        pytest.param(
            ["models", "--kubeconfig", "/nowhere", "--context", "c"],
            ["using the context c", "name one of these"],
            id="no such context",
        ),
    ],
)
def test_an_error_says_what_was_attempted_what_is_wrong_and_what_to_do(args, wants):
    answer = CliRunner().invoke(main, args)
    assert answer.exit_code == 1
    assert [want for want in wants if want not in answer.output] == []
