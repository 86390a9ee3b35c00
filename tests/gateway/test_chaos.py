"""Is every answer right, or an error that the contract names, whatever dies in between?

450 requests by 30 clients, streams and whole answers, for three models whose runners are killed,
revived, drained and replaced all the time.
"""

import asyncio
import collections
import json
import random

from berth.gateway.catalog import Route
from berth.reasons import State
from fakes.engine import Behaviour, FakeFleet
from gateway.world import Answer, World, chat, until, world

MODELS = ("a", "b", "c")
TOKENS = 12
CLIENTS, EACH = 30, 15
WORDS = "".join(f"word{n} " for n in range(TOKENS))
CONTRACT = {"runner_died", "runner_failed", "queue_full", "model_not_ready"}


def kind_of(answer: Answer, *, stream: bool) -> str:
    """``right``, or the code of the error; anything else fails."""
    if not stream:
        if answer.status == 200 and not answer.is_whole:
            return "cut short"
        if answer.status == 200:
            assert answer.json["choices"][0]["message"]["content"] == WORDS
            return "right"
        assert answer.is_whole
        return str(answer.error["code"])
    if answer.status != 200:
        return str(answer.error["code"])
    frames = answer.body.split(b"\n\n")
    if frames[-2:] == [b"data: [DONE]", b""]:
        text = "".join(
            event["choices"][0]["delta"].get("content", "")
            for event in answer.events
            if event != "[DONE]"
        )
        assert text == WORDS, "an answer that looks whole is whole"
        return "right"
    assert b"[DONE]" not in answer.body
    return str(json.loads(frames[-2][6:])["error"]["code"])


class Storm:
    """Kills, drains and starts runners: at most two for each model, each at an address of its own."""

    def __init__(self, w: World, fleet: FakeFleet) -> None:
        self.w = w
        self.fleet = fleet
        self.dice = random.Random(11)
        self.addresses = iter(f"127.9.{n // 250}.{n % 250 + 1}" for n in range(10_000))
        self.up: dict[str, list[str]] = {model: [] for model in MODELS}
        self.killed = 0

    def start(self, model: str) -> None:
        address = next(self.addresses)
        self.up[model].append(address)
        route = Route(address, f"default/{model}", address, self.fleet.port, 4, address)
        self.w.catalog.put_route(route)
        self.w.change(model, state=State.UP)

    def drain(self, model: str) -> None:
        self.w.catalog.drop_route(f"default/{model}", self.up[model].pop(0))

    async def kill(self, model: str) -> None:
        """As a dead pod looks: the gateway hears of it a moment later only."""
        address = self.up[model].pop(0)
        self.fleet.kill(address)
        self.killed += 1
        await asyncio.sleep(0.02)
        self.w.catalog.drop_route(f"default/{model}", address)

    async def blow(self) -> None:
        while True:
            model = self.dice.choice(MODELS)
            what = self.dice.choice(("kill", "drain", "start", "start"))
            if what == "start" and len(self.up[model]) < 2:
                self.start(model)
            elif what == "drain" and self.up[model]:
                self.drain(model)
            elif what == "kill" and self.up[model]:
                await self.kill(model)
            await asyncio.sleep(0.02)


async def ask_on(w: World, number: int, counts: collections.Counter) -> None:
    """One client: requests one after another, each to its end."""
    dice = random.Random(number)
    for _ in range(EACH):
        stream = dice.random() < 0.5
        answer = await w.ask(chat(dice.choice(MODELS), stream=stream))
        counts[kind_of(answer, stream=stream)] += 1


async def test_every_answer_is_right_or_an_error_of_the_contract():
    behaviour = Behaviour(tokens=TOKENS, token_s=0.002, slots=4)
    counts: collections.Counter = collections.Counter()
    async with world() as w, FakeFleet(behaviour).serving() as fleet:
        for model in MODELS:
            w.model(model)
        storm = Storm(w, fleet)
        blowing = asyncio.ensure_future(storm.blow())
        await asyncio.gather(*(ask_on(w, number, counts) for number in range(CLIENTS)))
        blowing.cancel()
        print(f"{storm.killed} runners killed; {dict(counts)}")
        assert sum(counts.values()) == CLIENTS * EACH
        assert counts.keys() <= CONTRACT | {"right", "cut short"}
        assert counts["right"] > CLIENTS * EACH * 0.8
        assert storm.killed > 5
        await until(lambda: (w.waiting, w.running) == (0, 0), "nothing left behind")
        assert w.gateway.ledger.in_flight == 0
        assert w.gateway.proxy.store.in_memory == 0
