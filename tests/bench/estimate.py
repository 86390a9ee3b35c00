"""How long does an estimate from facts take? ``python tests/bench/estimate.py``

CPU milliseconds of each measured case: asked for the first time, again, and again with equal facts that were read anew
from JSON, as a controller does; and one layer fewer on the devices, after the model was placed once. Exits 1 when a repeated one takes a millisecond or more, or the median first one does.
"""

import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).parent.parent))

from berth.estimator import Device, Settings, estimate
from berth.facts import Facts
from estimator.models import cases, devices_of, models, settings_of

Asked = tuple[Facts, Settings, Sequence[Device]]


def times(asked: Sequence[Asked]) -> list[float]:
    """CPU milliseconds of each."""
    found = []
    for facts, settings, devices in asked:
        begin = time.process_time()
        estimate(facts, settings, devices=devices)
        found.append((time.process_time() - begin) * 1000)
    return found


def moved(asked: Sequence[Asked]) -> list[Asked]:
    """Each model that has devices, half of it on them less one layer; half of it was asked for already."""
    found = []
    for facts, settings, devices in asked:
        half = (facts.layers or 0) // 2
        if devices and half > 1:
            estimate(facts, replace(settings, n_gpu_layers=half), devices=devices)
            found.append((facts, replace(settings, n_gpu_layers=half - 1), devices))
    return found


def line(what: str, found: Sequence[float]) -> str:
    return f"{what:34} median {median(found):7.3f}  mean {mean(found):7.3f}  most {max(found):7.3f}"


def main() -> int:
    rows = [case for case in cases() if "measured_bytes" in case]
    asked = [
        (models()[case["model"]], settings_of(case["settings"]), devices_of(case)) for case in rows
    ]
    anew = [
        (Facts.from_json(json.loads(json.dumps(facts.to_json()))), settings, devices)
        for facts, settings, devices in asked
    ]
    gc.freeze()
    first = times(asked)
    host = [ms for ms, one in zip(first, asked, strict=True) if not one[2]]
    devices = [ms for ms, one in zip(first, asked, strict=True) if one[2]]
    again, equal = times(asked), times(anew)
    placed = times(moved(asked))
    print(f"{len(asked)} estimates, milliseconds of CPU")
    print(line("first, on a host alone", host))
    print(line("first, with devices", devices))
    print(line("another placing, with devices", placed))
    print(line("again", again))
    print(line("again, facts anew from JSON", equal))
    print(f"time estimate {median(first):.3f} ms goal 1")
    return 0 if max(mean(again), mean(equal), median(host)) < 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
