"""How long does an estimate from facts take? ``python tests/bench/estimate.py``

Prints milliseconds for a first estimate of each measured case and for the same one again, as a planner asks it;
exits 1 when the second takes a millisecond or more.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from berth.estimator import estimate
from estimator.models import cases, devices_of, models, settings_of


def main() -> int:
    rows = [case for case in cases() if "measured_bytes" in case]
    inputs = [
        (models()[case["model"]], settings_of(case["settings"]), devices_of(case)) for case in rows
    ]
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        for facts, settings, devices in inputs:
            estimate(facts, settings, devices=devices)
        times.append((time.perf_counter() - begin) / len(inputs) * 1000)
    print(f"{len(inputs)} estimates: first {times[0]:.2f} ms each, again {times[1]:.3f} ms each")
    print(f"time estimate {times[1]:.3f} ms goal 1")
    return 0 if times[1] < 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
