"""Has every promise a row, and does every test that is named exist?"""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATES = ("done", "partly", "not yet")
# The last number of each letter; every number below it is a promise too.
LAST = {"L": 9, "M": 13, "D": 9, "C": 7, "O": 21, "F": 7, "R": 21, "H": 8, "X": 9}
IDS = {f"{letter}{number}" for letter, last in LAST.items() for number in range(1, last + 1)}


@dataclass(frozen=True)
class Row:
    """One promise, its state, and the tests that show it."""

    id: str
    promise: str
    state: str
    tests: tuple[str, ...]


def rows():
    text = (ROOT / "docs/requirements.md").read_text()
    for line in text.splitlines():
        if re.match(r"\| [A-Z]\d+ \|", line):
            identity, promise, state, tests = (cell.strip() for cell in line.strip("|").split(" |"))
            yield Row(identity, promise, state, tuple(re.findall(r"`([^`]+)`", tests)))


ROWS = list(rows())


def test_every_promise_has_one_row():
    assert Counter(row.id for row in ROWS) == Counter(dict.fromkeys(IDS, 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_state_is_one_of_three_and_shown_by_tests(row):
    assert row.state in STATES
    assert bool(row.tests) == (row.state != "not yet")


def names_in(path):
    """The names of the test functions of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_test_that_is_named_exists(row):
    """Named as ``tests/FOLDER/test_FILE.py``, or with ``::test_name`` or ``::TestClass::test_name``."""
    for named in row.tests:
        path, _, function = named.partition("::")
        assert (ROOT / path).is_file(), f"{named}: no such file"
        if function:
            assert function.rpartition("::")[2] in names_in(path), f"{named}: no such test"
