"""Is every setting in the one registry, and is every entry of it read?"""

import re
from pathlib import Path

import pytest

from berth.settings import REGISTRY, Settings

SOURCE = Path(__file__).parents[2] / "operator/src/berth"
ELSEWHERE = {
    "settings.py": "the registry itself",
    "runner/__main__.py": "BERTH_RUNNER, which the controller writes for one pod",
    "runner/engine.py": "what the engine inherits",
    "runner/checks.py": "where the engine's program is looked for",
    "headers/pool.py": "what a child may inherit",
    "kube/access.py": "where the kubelet tells every pod that the API server is",
}
"""Files that read the environment for another reason than a setting, and which."""


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_nothing_reads_the_environment_another_way() -> None:
    found = {
        str(path.relative_to(SOURCE))
        for path in sources()
        if re.search(r"os\.environ|getenv", path.read_text())
    }
    assert found == set(ELSEWHERE)


@pytest.mark.parametrize("setting", REGISTRY, ids=lambda setting: setting.name)
def test_every_setting_is_read_somewhere(setting) -> None:
    readers = [
        p for p in sources() if f'"{setting.name}"' in p.read_text() and p.name != "settings.py"
    ]
    assert readers


@pytest.mark.parametrize("setting", REGISTRY, ids=lambda setting: setting.name)
def test_every_setting_says_what_and_why_and_its_default_is_of_its_unit(setting) -> None:
    assert setting.what
    assert setting.why
    assert setting.read_by
    read = {"duration": "seconds", "bytes": "bytes", "number": "number", "list": "items"}
    getattr(Settings({}), read.get(setting.unit, "text"))(setting.name)


def test_a_name_that_is_not_registered_is_refused() -> None:
    with pytest.raises(KeyError):
        Settings({}).text("NO_SUCH_SETTING")
