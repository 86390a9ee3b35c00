"""Do `berth plan`, `explain`, `diff`, `snapshot` and `render` say of a live cluster what then happens?"""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner, Result

from api.bay import GIB, Bay
from berth.cli.main import main
from berth.planner.snapshot import state_from_json
from berth.planner.state import Stage


class Person:
    """Somebody with a kubeconfig and the bay's namespace."""

    def __init__(self, bay: Bay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bay, self._folder = bay, tmp_path
        for name in ("BERTH_RUNNER_IMAGES", "BERTH_HF_ENDPOINT"):
            monkeypatch.setenv(name, bay.stack.environment("cli")[name])

    def run(self, *args: str) -> Result:
        where = ("-n", self._bay.name, "--kubeconfig", str(self._bay.stack.plane.kubeconfig))
        return CliRunner().invoke(main, [*args, *where], catch_exceptions=False)

    def ask(self, *args: str) -> Any:
        """What a command says with ``--json``."""
        result = self.run(*args, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def file(self, kind: str, name: str, **spec: Any) -> str:
        """The path of a file that declares one object."""
        path = self._folder / f"{name}.yaml"
        body = {"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
        path.write_text(yaml.safe_dump({**body, "spec": spec}))
        return str(path)


def asked(bay: Bay, model: str) -> httpx.Response:
    """One request; commands run without an event loop, as a person's do."""
    return asyncio.run(bay.ask(model))


@pytest.fixture
def person(bay: Bay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    return Person(bay, tmp_path, monkeypatch)


def test_what_is_planned_is_what_happens_and_asking_touches_nothing(
    bay: Bay, person: Person
) -> None:
    node = bay.node(memory=16 * GIB)
    first, second = bay.model("first", weights=9 * GIB), bay.model("second", weights=8 * GIB)
    assert asked(bay, first).status_code == 200
    bay.wait_needs(second)
    uids = [runner["metadata"]["uid"] for runner in bay.runners()]
    # A report of no work is not believed right after a use.
    bay.stack.wait("the first may make room", lambda: _victims(person, second))
    (outcome,) = person.ask("plan", second)["models"]
    places = [made["place"]["node"] for made in outcome["placed"]]
    assert (places, [v["model"] for v in _victims(person, second)]) == (
        [node],
        [f"{bay.name}/{first}"],
    )
    assert f"would go: {bay.name}/{first}" in person.run("explain", second).stdout
    assert [runner["metadata"]["uid"] for runner in bay.runners()] == uids
    assert asked(bay, second).status_code == 200
    assert bay.pods_of(second)
    assert bay.get(second)["status"]["runners"][0]["node"] == node
    assert bay.state(first) in ("Down", "Stopping")


def _victims(person: Person, model: str) -> list[dict[str, Any]]:
    (outcome,) = person.ask("plan", model)["models"]
    victims: list[dict[str, Any]] = (outcome["then"] or outcome)["victims"]
    return victims


def test_a_snapshot_of_the_cluster_gives_the_same_answer(
    bay: Bay, person: Person, tmp_path: Path
) -> None:
    bay.node(memory=16 * GIB)
    small, large = bay.model("small", weights=2 * GIB), bay.model("large", weights=40 * GIB)
    assert asked(bay, small).status_code == 200
    bay.wait_needs(large)
    text = person.run("snapshot").stdout
    state = state_from_json(text)
    stages = {r.model: r.stage for r in state.runners if r.model.startswith(f"{bay.name}/")}
    assert stages == {f"{bay.name}/{small}": Stage.UP}
    (tmp_path / "s.json").write_text(text)
    dumped = person.ask("explain", large, "--snapshot", str(tmp_path / "s.json"))
    live = person.ask("explain", large)["ifAsked"]
    assert dumped["models"][0]["refusal"] == live["models"][0]["refusal"]
    refusal = live["models"][0]["refusal"]
    assert (refusal["reason"], refusal["final"]) == ("InsufficientCapacity", True)
    assert refusal["message"] in asked(bay, large).json()["error"]["message"]


def test_a_change_shows_its_bytes_and_a_dry_run_the_pod(bay: Bay, person: Person) -> None:
    node = bay.node(memory=16 * GIB)
    model = bay.model("m", weights=2 * GIB)
    assert asked(bay, model).status_code == 200
    spec = bay.get(model)["spec"]
    spec["overrides"] = spec.get("overrides", {}) | {"contextLength": 8192, "parallel": 2}
    changed = person.ask("diff", "-f", person.file("Model", model, **spec))
    (one,) = changed["models"]
    (cpu,) = [way for way in one["ways"] if way["devices"] == 0]
    assert cpu["after"]["host"] > cpu["before"]["host"]
    host = next(place for place in changed["places"] if place["node"] == node)
    claim = bay.runners()[0]["spec"]["claim"]["host"]
    assert (host["place"], host["heldBefore"]) == ("host", claim)
    assert host["heldAfter"] == cpu["after"]["host"]
    # There is room for the new one beside the old one, which goes once that is up.
    assert (changed["going"], one["after"]["placed"][0]["place"]["node"]) == ([], node)

    runner, pod = person.ask("render", model)
    real = bay.runners()[0]
    assert runner["spec"]["command"] == real["spec"]["command"]
    assert runner["spec"]["settingsHash"] == real["spec"]["settingsHash"]
    assert runner["spec"]["claim"]["host"] == claim
    assert pod["spec"]["containers"][0]["image"] == "fake/llamacpp:cpu"
    assert len(bay.runners()) == 1


def test_a_model_of_a_file_is_planned_without_being_declared(bay: Bay, person: Person) -> None:
    node = bay.node(memory=16 * GIB)
    source = {"url": {"uri": bay.file("new", weights=2 * GIB)}}
    path = person.file("Model", "new", source=source, nodeSelector={"bay": bay.name})
    (outcome,) = person.ask("plan", "-f", path)["models"]
    assert [made["place"]["node"] for made in outcome["placed"]] == [node]
    assert outcome["needs"][-1]["host"] > 2 * GIB
    assert bay.get("new") == {}
