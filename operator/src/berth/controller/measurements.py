"""What did runners really take, by Model, settings and kind of device? Kept in the Models' statuses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from berth.api.model import MeasuredNeed, MeasuredRun, Model
from berth.api.runner import Runner
from berth.planner.restarts import larger_need, settled
from berth.planner.state import Claim, Need
from berth.units import Bytes, MiB

RUNS_KEPT = 5
WAYS_KEPT = 8
"""Settings, ways to launch and kinds of device that are kept of one Model; the latest."""
CPU = "cpu"
_STEP = 64 * MiB
_SHARE = 0.01


@dataclass(frozen=True)
class Way:
    """What one measurement stands for. Another kind of device may need other buffers."""

    settings: str
    variant: str
    device: str


@dataclass
class Measurements:
    """By Model key: the runs of each way, the latest last. All of it is told in the statuses."""

    _runs: dict[str, dict[Way, list[MeasuredRun]]] = field(default_factory=dict)

    def adopt(self, model: Model) -> None:
        """Take over what a former leader has noted."""
        if model.key not in self._runs:
            self._runs[model.key] = {
                Way(each.settings, each.variant, each.device): list(each.runs)
                for each in model.status.measured
            }

    def keep_only(self, keys: set[str]) -> None:
        """Forget Models that are gone."""
        self._runs = {key: value for key, value in self._runs.items() if key in keys}

    def saw(self, key: str, runner: Runner, names: Mapping[str, str]) -> None:
        """Note what a runner that is up holds; ``names`` are those of the devices by UUID.

        Its peak on each device, and the largest working set on the host. Only a rise of max(64 MiB, 1 %)
        is news: a fleet that is idle writes nothing.
        """
        found = _run_of(runner)
        if found is None:
            return
        kinds = sorted({names.get(d.device, "") or "gpu" for d in runner.spec.claim.devices})
        way = Way(runner.spec.settings_hash, runner.spec.variant, ",".join(kinds)[:253] or CPU)
        ways = self._runs.setdefault(key, {})
        runs = ways.pop(way, [])
        ways[way] = _noted(runs, found)
        while len(ways) > WAYS_KEPT:
            ways.pop(next(iter(ways)))

    def larger(self, key: str, settings: str, need: Need) -> Need:
        """The need, made as large as runs of these settings have shown; of several kinds of device by
        the one that took most."""
        for way, runs in self._runs.get(key, {}).items():
            if (way.settings, way.variant) == (settings, need.variant) and runs:
                need = larger_need(need, _settled(runs))
        return need

    def ratios(self, key: str, settings: str, need: Need) -> Iterable[tuple[str, float]]:
        """What was measured as a share of what was estimated: ``host`` and ``device``."""
        for way, runs in self._runs.get(key, {}).items():
            if (way.settings, way.variant) != (settings, need.variant) or not runs:
                continue
            seen = _settled(runs)
            yield "host", seen.host / max(1, need.host)
            if need.gpus:
                yield "device", sum(size for _, size in seen.devices) / max(1, sum(need.gpus))

    def models(self) -> list[str]:
        """Keys of the Models that have run."""
        return [key for key, ways in self._runs.items() if ways]

    def told(self, key: str) -> list[MeasuredNeed]:
        """As the Model's status says it."""
        return [
            MeasuredNeed(settings=way.settings, variant=way.variant, device=way.device, runs=runs)
            for way, runs in sorted(self._runs.get(key, {}).items(), key=lambda item: str(item[0]))
        ]


def _run_of(runner: Runner) -> MeasuredRun | None:
    memory = runner.status.agent.memory if runner.status.agent else None
    if memory is None:
        return None
    peaks = {use.device: max(use.peak, use.used) for use in memory.devices}
    devices = [peaks.get(claim.device, 0) for claim in runner.spec.claim.devices]
    return MeasuredRun(runner=runner.metadata.uid, host=memory.host or 0, devices=devices)


def _noted(runs: list[MeasuredRun], found: MeasuredRun) -> list[MeasuredRun]:
    known = next((run for run in runs if run.runner == found.runner), None)
    if known is None:
        return [*runs, found][-RUNS_KEPT:]
    risen = MeasuredRun(
        runner=known.runner,
        host=_risen(known.host, found.host),
        devices=[_risen(a, b) for a, b in zip(known.devices, found.devices, strict=True)],
    )
    return [risen if run is known else run for run in runs]


def _risen(before: int, now: int) -> int:
    return now if now - before >= max(_STEP, int(before * _SHARE)) else before


def _settled(runs: list[MeasuredRun]) -> Claim:
    """The devices are told by their order, for the next runner may get others."""
    by_device = zip(*(run.devices for run in runs), strict=False)
    devices = tuple((str(at), Bytes(settled(sizes))) for at, sizes in enumerate(by_device))
    return Claim(Bytes(settled(run.host for run in runs)), devices)
