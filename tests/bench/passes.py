"""How long does a whole pass of the controller take, and how does it grow with the fleet?

Observe, price, plan, work out every status: over objects as the API server sends them, before a server
in memory that takes every write. ``python tests/bench/passes.py`` prints CPU milliseconds at four sizes
and the exponents fitted to them: 1 is linear.

1. *first*: as a new leader has it, with nothing worked out yet.
2. *idle*: nothing has changed.
3. *one*: one more model is waited for.
4. *many*: one model for each 10 nodes is waited for.
"""

import asyncio
import gc
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import placement_fleet as fleet
from bench.planner import GOAL_GROWTH, SIZES, growth
from berth.api.demand import Demand
from berth.api.inventory import NodeInventory
from berth.api.meta import timestamp
from berth.api.model import Model
from berth.api.runner import Runner
from berth.controller.apply import Hands
from berth.controller.history import History
from berth.controller.launch import Stamp
from berth.controller.loop import Bell, Passes
from berth.controller.metrics import Metrics
from berth.controller.observe import Frame, Remembered
from berth.controller.outbox import Outbox
from berth.controller.prices import Deskwork, PriceDesk, SourceSettings
from berth.controller.pricing import PriceSettings
from berth.controller.store import Store
from berth.controller.telling import Teller
from berth.headers.pool import HeaderPool
from berth.kube.refs import NODES, PODS, Ref, ref_of
from berth.manifests.pod import PodSettings
from fakes.fleet import gpu_uuid
from fakes.kube import FakeKube, Object

GIB = 1 << 30
NAMESPACE = "bench"
GOAL_IDLE = 1.0
START = time.time()
"""Time stands still: nothing becomes idle while the bench goes on."""
IMAGES = {"llamacpp/cuda": "fake/llamacpp:cuda", "llamacpp/cpu": "fake/llamacpp:cpu"}
MODELS, DEMANDS, RUNNERS = ref_of(Model), ref_of(Demand), ref_of(Runner)


class Server(FakeKube):
    """Takes every status as a server does; nobody watches it."""

    async def apply_status(
        self, ref: Ref, name: str, status: Object, *, manager: str, namespace: str = ""
    ) -> Object:
        obj = self.objects[ref.plural, namespace, name]
        return self.put(ref, obj | {"status": dict(status)})

    def _tell(self, plural: str, kind: str, obj: Object) -> None:
        obj["metadata"]["resourceVersion"] = str(next(self._versions))


@dataclass
class World:
    """A full fleet of so many nodes: 4 GPUs with a runner each, 10 models a node."""

    nodes: int
    kube: FakeKube
    store: Store
    passes: Passes
    number: int = 0

    async def once(self) -> float:
        """CPU seconds of one pass, what it posts to be written left out."""
        self.number += 1
        gc.collect()
        began = time.process_time()
        await self.passes.once(self.number)
        return time.process_time() - began

    async def settle(self) -> None:
        """Passes until none has anything to say any more."""
        for _ in range(6):
            await self.once()
            await self.passes.hands.outbox.settled()
            while len(self.passes.desk.prices()) < len(self.store.models):
                await asyncio.sleep(0.05)

    def ask(self, first: int, count: int) -> None:
        """A gateway's word for so many models that are down, from this one on."""
        for index in range(self.nodes * 4 + first, self.nodes * 4 + first + count):
            word = {"gateway": "g", "requests": 1, "since": timestamp(START), "beat": 1}
            name = f"m{index:05d}"
            obj = self.kube.objects["demands", NAMESPACE, name] | {"status": {"waiting": [word]}}
            self.store.demands.put(self.kube.put(DEMANDS, obj))


def world(nodes: int) -> World:
    kube, store = Server(), Store()
    facts = fleet.facts()["facts"]
    for n in range(nodes):
        _furnish(kube, store, f"gpu-{n:04d}")
    for index in range(nodes * 10):
        _declare(kube, store, f"m{index:05d}", facts)
        if index < nodes * 4:
            _load(kube, store, f"m{index:05d}", f"gpu-{index // 4:04d}", index % 4)
    bell, outbox = Bell(0.05), Outbox()
    hands = Hands(
        kube=kube,  # type: ignore[arg-type]
        store=store,
        teller=Teller(kube, outbox),  # type: ignore[arg-type]
        outbox=outbox,
        stamp=Stamp(1, "1-0-0"),
        clock=lambda: START,
        leads=lambda: True,
        pod_settings=PodSettings(),
    )
    work = Deskwork(
        kube=kube,  # type: ignore[arg-type]
        store=store,
        pool=HeaderPool(),
        sources=SourceSettings(endpoint="http://127.0.0.1:9"),
        settings=PriceSettings(images=IMAGES),
        changed=bell.ring,
        clock=lambda: START,
    )
    began = START - 3600
    passes = Passes(
        hands=hands,
        desk=PriceDesk(work),
        remembered=Remembered(History()),
        frame=lambda _: Frame(epoch=1, healthy_since=began),
        metrics=Metrics(),
        bell=bell,
    )
    return World(nodes, kube, store, passes)


def _furnish(kube: FakeKube, store: Store, name: str) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    node = fleet.node(name)
    store.nodes.put(kube.put(NODES, node | {"status": node["status"] | ready}))
    status = fleet.inventory_status(name)
    store.inventories.put(
        kube.put(ref_of(NodeInventory), fleet.inventory(name) | {"status": status})
    )


def _declare(kube: FakeKube, store: Store, name: str, facts: Object) -> None:
    store.models.put(kube.put(MODELS, fleet.model(name, NAMESPACE) | {"status": {"facts": facts}}))
    used = {"used": timestamp(START - 60 - int(name[1:]) % 1500)}
    meta = {"name": name, "namespace": NAMESPACE}
    store.demands.put(kube.put(DEMANDS, {"metadata": meta, "spec": {}, "status": used}))


def _load(kube: FakeKube, store: Store, model: str, node: str, at: int) -> None:
    name, ago = f"{model}-r", timestamp(START - 600)
    claim = {"host": GIB, "devices": [{"device": gpu_uuid(node, at), "memory": 18 * GIB}]}
    spec: Object = {
        "modelRef": {"name": model, "uid": f"uid-{model}"},
        "nodeName": node, "stage": "Reserved", "passId": "p", "epoch": 1, "claim": claim,
    }  # fmt: skip
    status = {"upSince": ago, "started": ago, "pod": name}
    meta = {"name": name, "namespace": NAMESPACE}
    store.runners.put(kube.put(RUNNERS, {"metadata": meta, "spec": spec, "status": status}))
    labels = {
        "app.kubernetes.io/managed-by": "berth", "berth.dev/runner": name,
        "berth.dev/runner-uid": f"uid-{name}", "berth.dev/model": model,
    }  # fmt: skip
    ready = [{"type": "Ready", "status": "True"}]
    pod: Object = {
        "metadata": meta | {"labels": labels},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready},
    }
    store.pods.put(kube.put(PODS, pod))


async def measure(nodes: int) -> dict[str, float]:
    """Seconds by kind of pass; the better of three where it can be had again."""
    here = world(nodes)
    found = {"first": await here.once()}
    await here.settle()
    gc.freeze()
    found["idle"] = min([await here.once() for _ in range(3)])
    ones = []
    for number in range(3):
        here.ask(number, 1)
        ones.append(await here.once())
        await here.passes.hands.outbox.settled()
    found["one"] = min(ones)
    here.ask(10, nodes // 10)
    found["many"] = await here.once()
    gc.unfreeze()
    return found


def main() -> None:
    times: dict[str, list[float]] = {}
    for nodes in SIZES:
        found = asyncio.run(measure(nodes))
        for kind, seconds in found.items():
            times.setdefault(kind, []).append(seconds)
        said = ", ".join(f"{kind} {seconds * 1e3:.0f} ms" for kind, seconds in found.items())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(f"# {nodes} nodes, {nodes * 10} models, {nodes * 4} runners: {said}; peak {peak} MiB")
    for kind in ("first", "idle", "one"):
        print(f"ratio pass-growth-{kind} {growth(SIZES, times[kind]):.2f} goal {GOAL_GROWTH}")
    print(f"ratio pass-growth {growth(SIZES, times['many']):.2f} goal {GOAL_GROWTH}")
    print(f"ratio pass-idle-seconds {times['idle'][-1]:.2f} goal {GOAL_IDLE:g}")


if __name__ == "__main__":
    main()
