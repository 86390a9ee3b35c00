"""Is a plugin that cannot be used refused by its name, and do the others work?"""

from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from berth.runtimes.base import Job, Launch, Runtime, Traits, Way
from berth.runtimes.llamacpp import LlamaCpp
from berth.runtimes.registry import BUILT_IN, GROUP, load, registry

HERE = "runtimes.test_registry"


class Good(Runtime):
    """Whole."""

    traits = Traits(name="good")

    def ways(self, job: Job) -> list[Way]:
        return []

    def command(self, settings: Any, launch: Launch) -> list[str]:
        return ["good"]


class Old(Good):
    """Written for another version."""

    traits = replace(Good.traits, name="old", api_version=0)


class Renamed(Good):
    """Its entry point is called otherwise."""


class Mute(Runtime):
    """Makes no command."""

    traits = Traits(name="mute")

    def ways(self, job: Job) -> list[Way]:
        return []


class Plain:
    """No runtime at all."""


def entry(name: str, target: str) -> EntryPoint:
    return EntryPoint(name, target if ":" in target else f"{HERE}:{target}", GROUP)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        pytest.param(entry("old", "Old"), "version 0 of the API", id="written for another version"),
        pytest.param(entry("renamed", "Renamed"), "'good'", id="another name than its traits say"),
        pytest.param(entry("mute", "Mute"), "abstract method", id="no command"),
        pytest.param(entry("plain", "Plain"), "no traits", id="no runtime"),
        pytest.param(entry("gone", "no.such.module:X"), "No module", id="cannot be imported"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused_by_name(bad: EntryPoint, why: str) -> None:
    found = load(["good", bad.name], [bad, entry("good", "Good")])
    assert list(found.runtimes) == ["good"]
    assert why in found.refused[bad.name]
    with pytest.raises(KeyError, match=f"'{bad.name}' is refused"):
        found.get(bad.name)


def test_the_second_of_one_name_is_refused() -> None:
    found = load(["good"], [entry("good", "Good"), entry("good", f"{HERE}:Renamed")])
    assert type(found.get("good")).__name__ == "Good"
    assert list(found.refused.values()) == ["another runtime has this name"]


def test_what_is_not_switched_on_is_not_even_imported() -> None:
    found = load(["good"], [entry("good", "Good"), entry("gone", "no.such.module:X")])
    assert (list(found.runtimes), dict(found.refused)) == (["good"], {})


def test_what_is_switched_on_and_not_installed_is_told() -> None:
    assert "no installed package" in load(["absent"], []).refused["absent"]


def test_every_built_in_runtime_is_there_and_keeps_no_state() -> None:
    found = registry()
    assert (sorted(found.runtimes), dict(found.refused)) == (sorted(BUILT_IN), {})
    assert all(vars(engine) == {} for engine in found.runtimes.values())
    assert isinstance(found.get(None), LlamaCpp)
