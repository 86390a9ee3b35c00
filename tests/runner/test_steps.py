"""What runs beside the engine: steps before it, and the questions for versions."""

import json
import signal
import sys

import pytest

from berth.runner.config import RunnerConfig, parse_config, render_config
from berth.runner.exits import ExitCode
from berth.runner.steps import ask_versions
from runner.test_supervisor import DEADLINE_S, runner, wait_for  # noqa: F401 - the fixture

PYTHON = sys.executable


def test_steps_run_before_the_engine_in_order(runner, tmp_path):  # noqa: F811
    trail = tmp_path / "trail"
    write = f"open({str(trail)!r}, 'a').write"
    running = runner(
        preExec=[
            [PYTHON, "-c", f"{write}('one ')"],
            [PYTHON, "-c", f"print('half way'); {write}('two ')"],
        ]
    )
    running.wait_status("ok")
    assert trail.read_text() == "one two "
    assert "half way" in running.text()
    running.signal(signal.SIGTERM)
    assert running.wait()[0] is ExitCode.OK


@pytest.mark.parametrize(
    ("step", "code", "told"),
    [
        pytest.param([PYTHON, "-c", "raise SystemExit(3)"], ExitCode.LOAD_FAILED, "status 3", id="it fails"),
        pytest.param(["no-such-step"], ExitCode.ENGINE_MISSING, "no-such-step", id="it is not there"),
    ],
)  # fmt: skip
def test_a_step_that_fails_starts_no_engine(runner, step, code, told):  # noqa: F811
    found, report = runner(preExec=[step]).wait()
    assert found is code
    assert "preExec step 1 of 1" in report["message"]
    assert told in report["message"]


def test_a_stop_in_a_step_ends_it(runner):  # noqa: F811
    running = runner(
        preExec=[[PYTHON, "-c", "print('in it', flush=True); import time; time.sleep(600)"]]
    )
    wait_for("the step to run", lambda: "in it" in running.text())
    running.signal(signal.SIGTERM)
    code, report = running.wait()
    assert code is ExitCode.OK
    assert "before it was up" in report["message"]


def test_versions_are_told_once_the_engine_is_up(runner):  # noqa: F811
    ask = {"engine": [PYTHON, "-c", "print('a banner\\n1.2.3\\n')"], "none": ["no-such-program"]}
    running = runner(optional={"versions": ask, "of a newer controller": 1})
    running.wait_status("ok")
    wait_for("versions", lambda: running.status("/state")[1]["versions"] == {"engine": "1.2.3"})
    running.signal(signal.SIGTERM)
    assert running.wait()[0] is ExitCode.OK


def test_a_command_that_fails_has_no_version():
    commands = {
        "bad": (PYTHON, "-c", "print('1.0'); raise SystemExit(1)"),
        "mute": (PYTHON, "-c", ""),
    }
    assert ask_versions(RunnerConfig(engine=("x",), port=1, versions=commands)) == {}


def test_what_is_written_is_read_back():
    config = RunnerConfig(
        engine=("x",), port=1, pre_exec=(("a", "b"),), versions={"x": ("y",)}, busy_gauges=("g",)
    )
    assert parse_config(render_config(config)) == config
    assert json.loads(render_config(config))["preExec"] == [["a", "b"]]
