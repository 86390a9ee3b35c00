"""Other architectures: what llama-server build 11669 logged on small files of each, against the estimate.

The files had random weights and the shapes in ``engine_11669.json``; sizes are logged to 0.01 MiB.
"""

import json
from functools import cache
from typing import Any

import pytest

from berth.estimator import estimate
from berth.facts import Facts
from berth.runtimes.llamacpp_flags import parse
from estimator.models import DATA


@cache
def measured() -> tuple[dict[str, Facts], list[dict[str, Any]]]:
    found = json.loads((DATA / "engine_11669.json").read_text())
    return {name: Facts.from_json(row) for name, row in found["models"].items()}, found["cases"]


CASES = measured()[1]
MiB = 1 << 20


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case['model']} {' '.join(case['flags'])}" for case in CASES]
)
def test_a_pasted_command_line_is_priced_as_the_engine_ran_it(case: dict[str, Any]) -> None:
    found = estimate(measured()[0][case["model"]], parse(case["flags"]).settings)
    log, host = case["logged_mib"], found.buffers["CPU"]
    assert found.kinds.weights / MiB == pytest.approx(log["weights"], abs=0.011)
    assert (found.kinds.kv_cache + found.kinds.state) / MiB == pytest.approx(
        log["cache"], abs=0.021
    )
    assert host.compute / MiB == pytest.approx(log["compute"], abs=0.006)
    assert host.output / MiB == pytest.approx(log["output"], abs=0.006)
    assert found.sure
