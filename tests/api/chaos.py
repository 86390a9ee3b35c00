"""What do clients get while runners die, models take each other's place and gateways roll? Counts, by kind.

    PYTHONPATH=tests python -m api.chaos --requests 10000

Three gateways, a real API server and controller, played engines and nodes. Four models of which two fit, so that
they swap all the time; every second a runner is killed; every few seconds a gateway is stopped as a rollout
does, or killed. Clients ask the gateways that are ready, as a Service lets them.
"""

import argparse
import asyncio
import collections
import itertools
import json
import random
import tempfile
import time
from pathlib import Path

import httpx

from api.bay import GIB, Bay, bay
from api.three import TOKENS, Gateways, ask_one, three_gateways
from berth.gateway.errors import BY_CODE
from cluster import stack as stacks

CLIENTS = 150
KILL_EVERY_S = 16
PATIENCE_S = 2.0
"""How long a client waits after an error before it asks for something else."""
KINDS = {"right", "broken", "gateway killed", *BY_CODE}
"""Right to the last word; cut short so that it shows (its runner died, or its gateway was killed); or an error
of the table, whole."""


class Chaos:
    """Everything that goes wrong, and who asks meanwhile, until so many requests have ended."""

    def __init__(
        self, here: Bay, gateways: Gateways, models: list[str], requests: int, ends: float
    ) -> None:
        self.bay = here
        self.gateways = gateways
        self.models = models
        self.left = requests
        self.ends = ends
        self.counts: collections.Counter[str] = collections.Counter()
        self.done: collections.Counter[str] = collections.Counter()
        """What was done to runners and gateways."""
        self.ready = set("abc")
        self.killed: collections.Counter[str] = collections.Counter()
        self.dice = random.Random(3)

    @property
    def is_over(self) -> bool:
        return self.left <= 0 or time.monotonic() > self.ends

    async def run(self) -> None:
        faults = [asyncio.create_task(fault()) for fault in (self.kill_runners, self.roll)]
        await asyncio.gather(*(self.client(number) for number in range(CLIENTS)))
        await asyncio.gather(*faults)

    async def client(self, number: int) -> None:
        dice = random.Random(number)
        async with httpx.AsyncClient(timeout=120) as client:
            while not self.is_over:
                name = dice.choice(sorted(self.ready))
                url, killed = self.gateways.url(name), self.killed[name]
                model, stream = self._wanted(dice), dice.random() < 0.5
                self.left -= 1
                kind = await ask_one(client, url, model, stream=stream)
                if kind == "refused":
                    # No request yet: who is behind a Service is given the next gateway.
                    self.left += 1
                    await asyncio.sleep(0.1)
                    continue
                if kind == "broken" and self.killed[name] > killed:
                    kind = "gateway killed"
                self.counts[kind] += 1
                if kind not in ("right", "gateway killed"):
                    await asyncio.sleep(PATIENCE_S)

    def _wanted(self, dice: random.Random) -> str:
        """Mostly the two of this quarter of a minute, so that each swap is worth its while."""
        turn = int(time.monotonic() / 15) % len(self.models)
        pair = (self.models * 2)[turn : turn + 2]
        return dice.choice(pair if dice.random() < 0.97 else self.models)

    async def kill_runners(self) -> None:
        for second in itertools.count():
            await asyncio.sleep(1)
            if self.is_over:
                return
            if second % KILL_EVERY_S != KILL_EVERY_S // 2:
                continue
            pods = await asyncio.to_thread(self.bay.pods)
            running = [p["metadata"]["name"] for p in pods if p["status"].get("phase") == "Running"]
            if running:
                victim = self.dice.choice(running)
                await asyncio.to_thread(self.bay.stack.fault, f"kill/{self.bay.name}/{victim}")
                self.done["runners killed"] += 1

    async def roll(self) -> None:
        for turn in range(10**6):
            await asyncio.sleep(4)
            if self.is_over:
                return
            name = "abc"[turn % 3]
            self.ready.discard(name)
            processes = self.bay.stack.plane.processes
            if turn % 4 == 3:
                self.killed[name] += 1
                await asyncio.to_thread(processes.kill, self.gateways.program(name))
                self.done["gateways killed"] += 1
            else:
                program = self.gateways.program(name)
                await asyncio.to_thread(processes.stop, program, grace_s=90)
                self.done["gateways rolled"] += 1
            self.gateways.start(name)
            await self.gateways.ready(name)
            self.ready.add(name)


def play(here: Bay, requests: int, *, seconds: float) -> Chaos:
    """So many requests in this bay, or those of so many seconds."""
    here.node(memory=56 * GIB)
    engine = {"tokens": TOKENS, "token_seconds": 0.005, "load_seconds": 1}
    profile = {"parallel": 16}
    models = [
        here.model(f"m{n}", weights=20 * GIB, engine=engine, profile=profile) for n in range(4)
    ]

    async def whole() -> Chaos:
        for name in "abc":
            await gateways.ready(name)
        chaos = Chaos(here, gateways, models, requests, time.monotonic() + seconds)
        await chaos.run()
        return chaos

    with three_gateways(here) as gateways:
        chaos = asyncio.run(whole())
    chaos.done["models loaded"] = len(here.created_pods())
    return chaos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600, help="no new request after that")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        stacks.running(Path(folder), audit=True) as stack,
        bay(stack) as here,
    ):
        start = time.monotonic()
        chaos = play(here, asked.requests, seconds=asked.seconds)
    print(json.dumps({"seconds": round(time.monotonic() - start), **chaos.done}))
    for kind, count in chaos.counts.most_common():
        print(f"{count:6d}  {100 * count / chaos.counts.total():6.2f} %  {kind}")
    if strange := set(chaos.counts) - KINDS:
        raise SystemExit(f"not of the contract: {sorted(strange)}")


if __name__ == "__main__":
    main()
