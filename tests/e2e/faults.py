"""What do clients see, and what is lost, when the node's programs die at any moment under load?

    PYTHONPATH=tests python -m e2e.faults --faults 200 --seed 1 --minutes 18

A whole node with Berth as its chart installs it and some models of a real file. A few of them at a time are asked, by
a streaming and a plain client each, for answers that are known word for word. Meanwhile something dies, again and
again: each of ``FAULTS`` while one of these is idle, loads, or streams; another one is asked all the time. The exit status is 1 if an answer was wrong, a request
lost, a model loaded twice or not served again, or if Runners, pods and engines differ at the end.
"""

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from berth.api.meta import ANNOTATION_UNLOAD
from e2e.installed import Installed, installed
from e2e.load import CUT, NOTHING, REFUSED, RIGHT, STRANGE, UNSAID, WRONG, Answer, Load, count

T = TypeVar("T")
STEADY = "auk"
"""Asked all the time; its own runner is left alone."""
MODELS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
"""So many that each has its minute to recover: from the fifth crash in a row on Berth calls a model failed."""
AT_ONCE = 3
MOMENTS = ("idle", "loading", "streaming")
PROGRAMS = ("controller", "agent", "csi", "gateway")
API_SERVER = "API server"
FAULTS = ("engine", "runner", "pod", *PROGRAMS, API_SERVER)
DEADLINE_S = 120.0
"""For a moment to come, and for a model to be served again."""
END_S = 60.0
"""Kept of the minutes for the checks at the end."""
FORBIDDEN = (WRONG, NOTHING, UNSAID, REFUSED)
GATEWAY, AWAY = "gone with its gateway", "refused: no gateway"
POLL_S = 0.05


@dataclass(frozen=True)
class Seen:
    """A process of a pod of the node."""

    pid: int
    kind: str
    """``engine``, ``runner``, or one of Berth's programs."""
    pod: str

    @property
    def model(self) -> str:
        return self.pod.partition("-")[0]


def what_runs(cgroup: str) -> list[Seen]:
    """The engines, runners and programs in this cgroup, now."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            group = (folder / "cgroup").read_text()
            if f"/{cgroup}/" not in group:
                continue
            kind = _kind((folder / "cmdline").read_bytes().decode(errors="replace").split("\0"))
            environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        given = dict(line.split("=", 1) for line in environment if "=" in line)
        if kind:
            found.append(Seen(int(folder.name), kind, given.get("HOSTNAME", "")))
    return found


def _kind(words: list[str]) -> str:
    if words[0].endswith("llama-server"):
        return "engine"
    if "berth.runner" in words:
        return "runner"
    for word, program in itertools.pairwise(words):
        if word.endswith("/berth") and program in PROGRAMS:
            return program
    return ""


class Watch:
    """Looks ten times a second which pods have an engine; two of one model is a model loaded twice."""

    def __init__(self, cgroup: str) -> None:
        self.cgroup = cgroup
        self.now = what_runs(cgroup)
        self.twice: set[tuple[str, ...]] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def of(self, kind: str, model: str = "") -> list[Seen]:
        return [seen for seen in self.now if seen.kind == kind and model in ("", seen.model)]

    def pods(self) -> set[str]:
        return {seen.pod for seen in self.of("engine")}

    def _look(self) -> None:
        while not self._over.wait(POLL_S * 2):
            self.now = what_runs(self.cgroup)
            for model in (STEADY, *MODELS):
                pods = tuple(sorted({seen.pod for seen in self.of("engine", model)}))
                if len(pods) > 1:
                    self.twice.add(pods)


@dataclass
class Struck:
    """A fault, when it came and after how many seconds its model was served again."""

    fault: str
    moment: str
    model: str
    at: float
    served_s: float | None = None


class StuckError(Exception):
    """What was waited for did not come."""


class Trial:
    """Faults, each at its moment, on two models at a time, while clients ask for these."""

    def __init__(self, berth: Installed, load: Load, watch: Watch, seed: int) -> None:
        self.berth, self.load, self.watch = berth, load, watch
        self.struck: list[Struck] = []
        self.problems: list[str] = []
        self._dice = random.Random(seed)
        self._rested = list(MODELS)
        """Not in play, the longest left alone first."""
        self._api = asyncio.Lock()
        """Nobody asks the API server while it restarts."""

    async def run(self, faults: int, ends: float) -> None:
        cells = itertools.islice(self._deck(), faults)
        await asyncio.gather(*(self._strike_all(cells, ends) for _ in range(AT_ONCE)))

    def _deck(self) -> Iterator[tuple[str, str]]:
        """Every fault at every moment, shuffled, again and again.

        The API server once a round: scheduler and kubelet wait ever longer, up to 30 s, for one that
        goes away again and again.
        """
        for turn in itertools.count():
            cells = list(itertools.product(FAULTS[:-1], MOMENTS))
            cells.append((API_SERVER, MOMENTS[turn % len(MOMENTS)]))
            self._dice.shuffle(cells)
            yield from cells

    async def _strike_all(self, cells: Iterator[tuple[str, str]], ends: float) -> None:
        for fault, moment in cells:
            if time.monotonic() > ends:
                return
            model = self._rested.pop(0)
            try:
                await self._one(fault, moment, model)
            except StuckError as stuck:
                self.problems.append(str(stuck))
            self.load.gates[model].clear()
            self._rested.append(model)

    async def _one(self, fault: str, moment: str, model: str) -> None:
        if fault in PROGRAMS:
            await until(f"{fault} runs", lambda: self.watch.of(fault))
        await getattr(self, f"_until_{moment}")(model)
        struck = Struck(fault, moment, model, time.monotonic())
        self.struck.append(struck)
        await self._strike(fault, model)
        self.load.gates[model].set()
        served = await until(
            f"{model} is served after {fault}, {moment}",
            lambda: self.load.served_after(struck.at, model),
        )
        struck.served_s = served - struck.at
        print(f"# {len(self.struck)} {model} {fault} {moment}: {struck.served_s:.1f} s", flush=True)

    async def _until_idle(self, model: str) -> None:
        self.load.gates[model].clear()
        await until(f"{model} has ended its answers", lambda: self.load.is_quiet(model))

    async def _until_loading(self, model: str) -> None:
        """Unloaded, asked for again, its engine started and nothing said yet."""
        await self._until_idle(model)
        note = f"{ANNOTATION_UNLOAD}={time.time()}"
        await self._kubectl("annotate", "model", model, note, "--overwrite")
        await until(f"{model} is unloaded", lambda: not self.watch.of("runner", model))
        self.load.gates[model].set()
        await until(f"{model} loads", lambda: self.watch.of("engine", model))

    async def _until_streaming(self, model: str) -> None:
        self.load.gates[model].set()
        await until(f"{model} streams", lambda: self.load.is_talking(model))

    async def _strike(self, fault: str, model: str) -> None:
        if fault == API_SERVER:
            async with self._api:
                await asyncio.to_thread(self.berth.cluster.plane.restart, "kube-apiserver")
            return
        of = "" if fault in PROGRAMS else model
        kind = "runner" if fault == "pod" else fault
        victims = await until(f"there is a {kind} to kill", lambda: self.watch.of(kind, of))
        if fault == "pod":
            await self._kubectl("delete", "pod", "--wait=false", victims[-1].pod)
            return
        for seen in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(seen.pid, signal.SIGKILL)

    async def _kubectl(self, *arguments: str) -> None:
        async with self._api:
            await asyncio.to_thread(self.berth.kubectl, *arguments)

    def tell_gateways(self) -> None:
        """Who asked while the only gateway was killed, or was not back, is told apart."""
        kills = [struck for struck in self.struck if struck.fault == "gateway"]
        for answer in self.load.answers:
            for kill in kills:
                back = kill.at + (kill.served_s or DEADLINE_S)
                was_in_it = answer.began <= kill.at + 1 and kill.at <= answer.ended
                if answer.kind in (NOTHING, CUT, UNSAID) and was_in_it:
                    answer.kind = GATEWAY
                elif answer.kind == REFUSED and kill.at <= answer.ended <= back:
                    answer.kind = AWAY


async def until(what: str, check: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """What the check answers once that is something; raises StuckError after the deadline."""
    ends = time.monotonic() + deadline_s
    while not (found := check()):
        if time.monotonic() > ends:
            raise StuckError(f"waited {deadline_s:.0f} s in vain: {what}")
        await asyncio.sleep(POLL_S)
    return found


def table(trial: Trial) -> Iterator[str]:
    """One row for each fault and moment, in Markdown."""
    yield "| what died | model | times | right answers | clients saw else | s to the next first word: median | worst |"
    yield "|---|---|---|---|---|---|---|"
    rows: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for number, struck in enumerate(trial.struck):
        rows[struck.fault, struck.moment].append(number)
    for fault, moment in ((f, m) for f in FAULTS for m in MOMENTS if (f, m) in rows):
        numbers = rows[fault, moment]
        seconds = [trial.struck[number].served_s or DEADLINE_S for number in numbers]
        seen = sum((_seen(trial, number) for number in numbers), collections.Counter[str]())
        right = seen.pop(RIGHT, 0)
        rest = ", ".join(f"{kind} {times}" for kind, times in seen.most_common()) or "nothing"
        yield (
            f"| {fault} | {moment} | {len(numbers)} | {right} | {rest} "
            f"| {statistics.median(seconds):.1f} | {max(seconds):.1f} |"
        )


def _seen(trial: Trial, number: int) -> collections.Counter[str]:
    """How the requests ended whose latest fault this was."""
    return count(answer for answer in trial.load.answers if _latest_fault(trial, answer) == number)


def _latest_fault(trial: Trial, answer: Answer) -> int:
    """The last one before its end that was of its model, or of all."""
    return max(
        (
            number
            for number, struck in enumerate(trial.struck)
            if struck.at <= answer.ended
            and (struck.model == answer.model or struck.fault in (*PROGRAMS, API_SERVER))
        ),
        default=-1,
    )


async def end_state(berth: Installed, watch: Watch) -> bool:
    """Whether Runners, pods and engines came to be the same; waits for it."""

    def is_equal() -> bool:
        runners = {runner["status"].get("pod") for runner in berth.every("runners")}
        pods = set(berth.runner_pods(STEADY, *MODELS))
        return runners == pods == watch.pods()

    ends = time.monotonic() + END_S
    while not (equal := await asyncio.to_thread(is_equal)) and time.monotonic() < ends:
        await asyncio.sleep(1)
    return equal


async def play(berth: Installed, faults: int, seed: int, ends: float) -> bool:
    """Prints the table; whether nothing went wrong."""
    models = (STEADY, *MODELS)
    for name in models:
        overrides = {"parallel": 1, "contextLength": 2048}
        berth.model(name, overrides=overrides, idleTimeout="1h")
    load = Load(berth.endpoint, models, seed)
    await load.learn()
    with Watch(berth.cluster.node.cgroup) as watch:
        trial = Trial(berth, load, watch, seed)
        load.gates[STEADY].set()
        asking = asyncio.create_task(load.run())
        await trial.run(faults, ends - END_S)
        load.end()
        await asking
        equal = await end_state(berth, watch)
    trial.tell_gateways()
    return report(trial, equal=equal)


def report(trial: Trial, *, equal: bool) -> bool:
    """Prints the table and the sums; whether nothing went wrong."""
    print("\n".join(table(trial)))
    kinds, twice = count(trial.load.answers), sorted(trial.watch.twice)
    loads = sum(trial.berth.created_pods(model) for model in (STEADY, *MODELS))
    print(
        f"\nfaults {len(trial.struck)}, loads {loads}, requests {kinds.total()}: {json.dumps(kinds)}"
    )
    print(f"wrong answers {kinds[WRONG]}, lost {kinds[NOTHING]}, loaded twice {len(twice)}")
    print(f"Runners, pods and engines at the end: {'the same' if equal else 'NOT the same'}")
    wrong = [kind for kind in kinds if kind.startswith(STRANGE) or kind in FORBIDDEN]
    for line in (*trial.problems, *wrong, *twice):
        print(f"failed: {line}")
    return equal and not (trial.problems or wrong or twice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=18, help="no new fault after that")
    asked = parser.parse_args()
    ends = time.monotonic() + asked.minutes * 60
    with tempfile.TemporaryDirectory() as folder, installed(Path(folder) / "f") as berth:
        is_well = asyncio.run(play(berth, asked.faults, asked.seed, ends))
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
