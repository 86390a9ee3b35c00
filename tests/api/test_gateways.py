"""Do several gateways behave as one, whatever happens to each of them? (F1, X7)"""

import asyncio
import collections
import random
import time
from pathlib import Path

import httpx
import yaml

from api.bay import Bay, chat
from api.relay import Relay, relay
from api.three import TOKENS, Gateways, ask_one, three_gateways

CLIENTS, STORM_S = 12, 15.0
CONTRACT = {"gateway_stopping", "gateway_starting", "model_not_ready", "queue_full", "runner_died"}


class Storm:
    """Clients that ask one gateway after another, as behind a Service, until told to stop."""

    def __init__(self, gateways: Gateways, models: list[str]) -> None:
        self.gateways = gateways
        self.models = models
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.ends = time.monotonic() + STORM_S

    async def client(self, number: int) -> None:
        dice = random.Random(number)
        async with httpx.AsyncClient(timeout=60) as client:
            while time.monotonic() < self.ends:
                name, stream = dice.choice("abc"), dice.random() < 0.5
                url, model = self.gateways.url(name), dice.choice(self.models)
                kind = await ask_one(client, url, model, stream=stream)
                self.counts[name, kind] += 1
                await asyncio.sleep(0.3 if kind in ("refused", "gateway_stopping") else 0.02)

    def of(self, name: str) -> dict[str, int]:
        return {kind: count for (who, kind), count in self.counts.items() if who == name}


async def test_one_is_killed_one_rolls_and_one_is_cut_off(bay: Bay, tmp_path: Path) -> None:
    """What each may cost: the killed one its answers in flight; the others none at all."""
    bay.node()
    behaviour = {"tokens": TOKENS, "token_seconds": 0.01}
    models = [bay.model(f"m{n}", engine=behaviour, idleTimeout="6s") for n in range(2)]
    with (
        relay(bay.stack.plane.port) as link,
        three_gateways(bay, **_through(bay, link, tmp_path)) as three,
    ):
        for name in "abc":
            await three.ready(name)
        for model in models:
            assert (await bay.ask(model)).status_code == 200
        storm = Storm(three, models)
        clients = [asyncio.create_task(storm.client(n)) for n in range(CLIENTS)]
        await asyncio.sleep(2)
        link.silence()
        link.close()
        await asyncio.sleep(2)
        await asyncio.to_thread(bay.stack.plane.kill, three.program("a"))
        await asyncio.sleep(2)
        three.start("a")
        await three.ready("a")
        await asyncio.to_thread(bay.stack.plane.stop, three.program("b"))
        three.start("b")
        await three.ready("b")
        await asyncio.gather(*clients)
        print({name: storm.of(name) for name in "abc"})
    assert sum(storm.counts.values()) > 100
    assert set(storm.of("a")) <= {"right", "refused", "broken"} | CONTRACT
    assert storm.of("a").get("broken", 0) <= CLIENTS
    assert set(storm.of("b")) <= {"right", "refused", "gateway_stopping", "gateway_starting"}
    assert set(storm.of("c")) == {"right"}
    assert all(storm.of(name)["right"] > 15 for name in "abc")
    assert len(bay.created_pods()) == len(models), "no model was ever unloaded"


def _through(bay: Bay, link: Relay, folder: Path) -> dict[str, str]:
    """A kubeconfig whose way to the API server can be cut."""
    config = yaml.safe_load(bay.stack.plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{link.port}"
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return {"KUBECONFIG": str(folder / "kubeconfig")}


async def test_use_through_one_gateway_keeps_a_model_for_all_and_its_end_unloads_it_once(
    bay: Bay,
) -> None:
    idle_s = 2
    bay.node()
    model = bay.model("m", engine={"tokens": 1}, idleTimeout=f"{idle_s}s")
    with three_gateways(bay) as three:
        for name in "abc":
            await three.ready(name)
        async with httpx.AsyncClient(timeout=30) as client:
            for name in "abc":
                answer = await client.post(
                    f"{three.url(name)}/v1/chat/completions", json=chat(model)
                )
                assert answer.status_code == 200
            ends = time.monotonic() + 5 * idle_s
            while time.monotonic() < ends:
                answer = await client.post(
                    f"{three.url('b')}/v1/chat/completions", json=chat(model)
                )
                assert answer.status_code == 200
                await asyncio.sleep(0.5)
        assert len(bay.created_pods()) == 1
        await bay.until("it is unloaded", lambda: bay.pods() == [])
        assert bay.state(model) == "Down"
        await asyncio.sleep(2 * idle_s)
        assert len(bay.created_pods()) == 1
