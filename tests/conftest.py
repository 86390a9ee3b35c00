"""What do all tests share? How examples are looked for, what a signal means, how many workers there are."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, not whether the code is right.
BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}

# CI judges a change by the same examples each time; everybody's own runs look for new ones.
settings.register_profile("ci", derandomize=True, **BUSY)
settings.register_profile("dev", **BUSY)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# A shell that starts the tests in the background has this signal ignored, and what they start would be
# born deaf to it.
signal.signal(signal.SIGINT, signal.default_int_handler)

CLUSTERLESS = "not api and not e2e"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Twice the cores for tests that wait about half their time; clusters get xdist's own number."""
    if config.option.markexpr != CLUSTERLESS:
        return None
    return 2 * len(os.sched_getaffinity(0))
