"""Does the map of decisions name things that exist?"""

import importlib
import re
from pathlib import Path

import berth.planner

README = Path(berth.planner.__file__).parent / "README.md"
ROW = re.compile(r"^\| [^|]+ \| `(\w+)\.(\w+)` \| `(\w+)\.(\w+)` \|$", re.MULTILINE)


def test_every_decision_of_the_map_and_its_test_exist() -> None:
    rows = ROW.findall(README.read_text(encoding="utf-8"))
    assert len(rows) >= 25
    for module, function, test_module, test in rows:
        assert hasattr(importlib.import_module(f"berth.planner.{module}"), function), function
        assert hasattr(importlib.import_module(f"planner.{test_module}"), test), test


def test_every_public_decision_is_on_the_map() -> None:
    mapped = {function for _, function, _, _ in ROW.findall(README.read_text(encoding="utf-8"))}
    rules = {"plan_search", "plan_leave_reason", "plan_model_runners", "plan_with"}
    for path in sorted(README.parent.glob("*.py")):
        found = re.findall(r"^def (plan_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(found) <= mapped | rules, path.name
