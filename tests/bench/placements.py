"""How many placements a second does Berth make, beside kube-scheduler on the same cluster?

``python tests/bench/placements.py [--nodes N] [--wishes N] [--rounds N]`` starts an API server, the
controller manager, kube-scheduler and kwok, and writes N nodes of 4 GPUs. In each round

- so many pods are created, and timed from the first write to the last pod that is bound;
- so many Demands get a ``waiting`` entry, as a gateway writes it, and are timed from the first write to
  the last Runner that is there, reserved, with its place; by the real controller program.

Both are written by this program through one client, so many at once. The scheduler's own client is not
held to its default of 50 requests a second. ``ratio planner-binds`` is placements a second over bound
pods a second, the median of the rounds. No agents run: their inventories are written by hand.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import SubprocessError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import placement_fleet as fleet
from berth.api.demand import Demand
from berth.api.inventory import NodeInventory
from berth.api.meta import timestamp
from berth.api.model import Model
from berth.api.runner import Runner
from berth.kube.cache import raw_cache
from berth.kube.client import ApiError, ApiUnreachableError, Kube, Object
from berth.kube.refs import NAMESPACES, NODES, PODS, Ref, ref_of
from cluster import build, controlplane, ports
from cluster.controlplane import CONTROLLER_MANAGER, KWOK, SCHEDULER, ControlPlane
from cluster.problem import Problem
from cluster.stack import CHECKOUT, Stack
from cluster.stack import NAMESPACE as SYSTEM

GOAL = 1.0
FIGURE = "planner-binds"
NAMESPACE = "bench"
GATEWAY = "bench"
AT_ONCE = 16
"""Writes of this program under way at a time."""
BEAT_S = 5.0
DEADLINE_S = 120.0
MODELS, DEMANDS, RUNNERS = ref_of(Model), ref_of(Demand), ref_of(Runner)
INVENTORIES = ref_of(NodeInventory)
ACCOUNTS = Ref("v1", "ServiceAccount", "serviceaccounts", namespaced=True)


@dataclass(frozen=True)
class Size:
    """How large the comparison is."""

    nodes: int
    wishes: int
    rounds: int


@dataclass
class Seen:
    """Names that a watch has told of, and a bell for each new one."""

    names: set[str] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, name: str) -> None:
        self.names.add(name)
        self.news.set()


@dataclass(frozen=True)
class Cpu:
    """CPU seconds of the API server with its store, and of the program that places, since their start."""

    server: float
    program: float


@dataclass(frozen=True)
class Spent:
    """One half of a round."""

    seconds: float
    before: Cpu
    after: Cpu

    @property
    def server(self) -> float:
        return self.after.server - self.before.server

    @property
    def program(self) -> float:
        return self.after.program - self.before.program


def cpu(stack: Stack, program: str) -> Cpu:
    """What the programs have used so far; a machine that others use, too, has no say in it."""
    return Cpu(_cpu_s(stack, "kube-apiserver") + _cpu_s(stack, "etcd"), _cpu_s(stack, program))


def _cpu_s(stack: Stack, name: str) -> float:
    found = stack.plane.processes.find(name)
    assert found is not None
    fields = Path(f"/proc/{found.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- the cluster ----------------------------------------------------------------------------------


def start(state_dir: Path) -> Stack:
    """A control plane with Berth's kinds; its programs and the scheduler come later."""
    plane = controlplane.start(
        state_dir, controlplane.Settings(components=(CONTROLLER_MANAGER, KWOK))
    )
    plane.processes.start(SCHEDULER, scheduler_command(plane))
    crds = str(CHECKOUT / "crds")
    plane.kubectl("apply", "--server-side", "-f", crds)
    plane.kubectl("wait", "--for=condition=Established", "-f", crds, "--timeout=30s")
    return Stack(plane, *ports.free(3))


def scheduler_command(plane: ControlPlane) -> list[str]:
    """As the control plane's own, but for its client's brake: 50 requests a second by default."""
    kubeconfig = plane.state_dir / "kubeconfigs" / f"system_{SCHEDULER}"
    config = plane.state_dir / "scheduler.json"
    said = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
        "leaderElection": {"leaderElect": False},
        "enableProfiling": False,
    }
    config.write_text(json.dumps(said))
    return [
        str(build.binary(build.KUBE)), SCHEDULER, f"--config={config}",
        f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1", f"--secure-port={ports.free(1)[0]}",
        f"--cert-dir={plane.state_dir / 'pki' / SCHEDULER}",
    ]  # fmt: skip


async def furnish(kube: Kube, nodes: int) -> None:
    """Namespaces, nodes and inventories; waits until every node may be scheduled on."""
    for name in (SYSTEM, NAMESPACE):
        await kube.create(NAMESPACES, {"metadata": {"name": name}})
    names = [f"gpu-{n:04d}" for n in range(nodes)]
    await each(names, lambda name: _furnish_node(kube, name))

    async def all_ready() -> bool:
        found, _ = await kube.list_all(NODES)
        return len(found) == nodes and all(_is_open(node) for node in found)

    async def has_account() -> bool:
        accounts, _ = await kube.list_all(ACCOUNTS, NAMESPACE)
        return bool(accounts)

    await until(f"{nodes} nodes are ready and without taints", all_ready, pause_s=1.0)
    await until("the namespace's service account is there", has_account, pause_s=0.2)


async def _furnish_node(kube: Kube, name: str) -> None:
    await kube.create(NODES, fleet.node(name))
    await kube.create(INVENTORIES, fleet.inventory(name))
    status = fleet.inventory_status(name)
    await kube.apply_status(INVENTORIES, name, status, manager="berth-agent")


def _is_open(node: Object) -> bool:
    conditions = node["status"].get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not node["spec"].get("taints")


# -- kube-scheduler's half ------------------------------------------------------------------------


async def bind_pods(stack: Stack, kube: Kube, names: Sequence[str]) -> Spent:
    """From the first pod's creation to the last one that is bound. The pods are gone afterwards."""

    async def create(name: str) -> None:
        await kube.create(PODS, fleet.pod(name, NAMESPACE), NAMESPACE)

    def bound(pod: Object) -> str:
        return pod["metadata"]["name"] if pod["spec"].get("nodeName") else ""

    async with watched(kube, PODS, bound) as seen:
        before = cpu(stack, SCHEDULER)
        took = await timed(f"{len(names)} pods are bound", names, create, seen)
        spent = Spent(took, before, cpu(stack, SCHEDULER))
    await erase(kube, PODS, names)
    return spent


# -- Berth's half ---------------------------------------------------------------------------------


async def place_models(stack: Stack, kube: Kube, names: Sequence[str], facts: Object) -> Spent:
    """From the first waiting entry to the last reserved Runner. The models are gone afterwards."""
    await each(names, lambda name: declare(kube, name, facts))
    stack.start_program("controller")
    try:
        await _until_priced(kube, names)
        before = cpu(stack, "controller")
        took = await _time_models(kube, names)
        return Spent(took, before, cpu(stack, "controller"))
    except Problem:
        print(f"# the controller's last words:\n{stack.plane.processes.tail('controller')}")
        raise
    finally:
        stack.plane.processes.stop("controller")
        runners, _ = await kube.list_all(RUNNERS, NAMESPACE)
        await erase(kube, MODELS, names)
        await erase(kube, DEMANDS, names)
        await erase(kube, RUNNERS, [runner["metadata"]["name"] for runner in runners])


async def declare(kube: Kube, name: str, facts: Object) -> None:
    await kube.create(MODELS, fleet.model(name, NAMESPACE), NAMESPACE)
    await kube.apply_status(MODELS, name, facts, manager="berth-controller", namespace=NAMESPACE)


async def _until_priced(kube: Kube, names: Sequence[str]) -> None:
    """The controller knows what each model needs, and has no more to write."""
    before = ""

    async def settled() -> bool:
        nonlocal before
        models, _ = await kube.list_all(MODELS, NAMESPACE)
        demands, _ = await kube.list_all(DEMANDS, NAMESPACE)
        priced = sum("needs" in (model.get("status") or {}) for model in models)
        quiet, before = before == _versions(models), _versions(models)
        return quiet and priced == len(demands) == len(names)

    await until(f"{len(names)} models have their needs and Demands", settled, pause_s=2.0)


def _versions(objects: Iterable[Object]) -> str:
    return " ".join(obj["metadata"]["resourceVersion"] for obj in objects)


async def _time_models(kube: Kube, names: Sequence[str]) -> float:
    since, written = timestamp(time.time()), set()

    async def say(name: str, beat: int) -> None:
        word = {"gateway": GATEWAY, "requests": 1, "since": since, "beat": beat}
        status, manager = {"waiting": [word]}, f"berth-gateway-{GATEWAY}"
        await kube.apply_status(DEMANDS, name, status, manager=manager, namespace=NAMESPACE)

    async def wish(name: str) -> None:
        await say(name, 1)
        written.add(name)

    async def beat() -> None:
        for number in range(2, round(DEADLINE_S / BEAT_S)):
            await asyncio.sleep(BEAT_S)
            late = sorted(written - seen.names)
            await each(late, lambda name, number=number: say(name, number))

    async with watched(kube, RUNNERS, _placed) as seen:
        beating = asyncio.create_task(beat())
        try:
            return await timed(f"{len(names)} models have their place", names, wish, seen)
        finally:
            beating.cancel()


def _placed(runner: Object) -> str:
    spec = runner["spec"]
    reserved = spec.get("stage") == "Reserved" and spec.get("nodeName")
    devices = (spec.get("claim") or {}).get("devices")
    return spec["modelRef"]["name"] if reserved and devices else ""


# -- measuring ------------------------------------------------------------------------------------


async def timed(
    what: str, names: Sequence[str], write: Callable[[str], Awaitable[None]], seen: Seen
) -> float:
    """Write one wish for each name; seconds until the watch has told of all of them."""
    wanted, began = set(names), time.monotonic()

    async def hear() -> float:
        while not wanted <= seen.names:
            await seen.news.wait()
            seen.news.clear()
        return time.monotonic() - began

    try:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            group.create_task(each(names, write))
            hearing = group.create_task(hear())
    except TimeoutError as err:
        done = len(wanted & seen.names)
        raise Problem(
            f"not within {DEADLINE_S:.0f} s: {what}; {done} of them", todo="choose fewer"
        ) from err
    return hearing.result()


@asynccontextmanager
async def watched(kube: Kube, ref: Ref, name_of: Callable[[Object], str]) -> AsyncIterator[Seen]:
    """What a watch tells while the block lasts: the names that ``name_of`` finds."""
    seen = Seen()

    def changed(_: str, obj: Object | None) -> None:
        if obj is not None and (name := name_of(obj)):
            seen.add(name)

    # The server closes the watch of a client that is late; a cache goes on where it was.
    cache = raw_cache(kube, ref, changed=changed, namespace=NAMESPACE)
    task = asyncio.create_task(cache.run())
    await cache.synced.wait()
    try:
        yield seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def each(names: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
    """The work for every name, so many at once."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with limit:
            await work(name)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))


async def erase(kube: Kube, ref: Ref, names: Sequence[str]) -> None:
    """Delete them at once, and wait until none is left."""

    async def delete(name: str) -> None:
        await kube.delete(ref, name, NAMESPACE, grace_s=0)

    async def gone() -> bool:
        left, _ = await kube.list_all(ref, NAMESPACE)
        return not left

    await each(names, delete)
    await until(f"{ref.plural} are gone", gone, pause_s=0.5)


async def until(what: str, check: Callable[[], Awaitable[bool]], *, pause_s: float) -> None:
    end = time.monotonic() + DEADLINE_S
    while not await check():
        if time.monotonic() > end:
            raise Problem(f"not within {DEADLINE_S:.0f} s: {what}", todo="choose fewer nodes")
        await asyncio.sleep(pause_s)


# -- the whole ------------------------------------------------------------------------------------


async def compare(stack: Stack, size: Size) -> float:
    """Placements a second over bound pods a second: the median of the rounds."""
    facts, ratios = fleet.facts(), []
    async with await Kube.connect(kubeconfig=str(stack.plane.kubeconfig)) as kube:
        await furnish(kube, size.nodes)
        for number in range(size.rounds):
            names = [f"w{number}-{index:05d}" for index in range(size.wishes)]
            bare = await create_runners(stack, kube, names)
            pods = await bind_pods(stack, kube, names)
            models = await place_models(stack, kube, names, facts)
            ratios.append(pods.seconds / models.seconds)
            print(
                f"# {size.nodes} nodes, {size.wishes} wishes: kube-scheduler"
                f" {size.wishes / pods.seconds:.0f} pods/s, Berth"
                f" {size.wishes / models.seconds:.0f} placements/s;"
                f" bare Runners {size.wishes / bare.seconds:.0f}/s"
            )
            print(
                f"# CPU ms a wish: pods {_each(pods, size)}, placements {_each(models, size)},"
                f" bare Runners: API server {bare.server / size.wishes * 1e3:.1f}",
                flush=True,
            )
    return statistics.median(ratios)


def _each(spent: Spent, size: Size) -> str:
    server, program = spent.server / size.wishes * 1e3, spent.program / size.wishes * 1e3
    return f"API server {server:.1f} + program {program:.1f}"


async def create_runners(stack: Stack, kube: Kube, names: Sequence[str]) -> Spent:
    """So many Runners, written by this program and seen by its watch: the bound for any controller."""

    async def create(name: str) -> None:
        await kube.create(RUNNERS, fleet.runner(name, NAMESPACE), NAMESPACE)

    async with watched(kube, RUNNERS, _placed) as seen:
        before = cpu(stack, "etcd")
        took = await timed(f"{len(names)} Runners are there", names, create, seen)
        spent = Spent(took, before, cpu(stack, "etcd"))
    await erase(kube, RUNNERS, names)
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--wishes", type=int, default=300, help="pods and models of a round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    size = Size(options.nodes, options.wishes, options.rounds)
    if size.wishes > size.nodes * fleet.GPUS:
        parser.error(f"{size.nodes} nodes have room for {size.nodes * fleet.GPUS} wishes")
    state_dir = Path(tempfile.mkdtemp(prefix="berth-bench-"))
    try:
        print(f"ratio {FIGURE} {asyncio.run(compare(start(state_dir), size)):.2f} goal {GOAL:g}")
    except (Problem, ExceptionGroup, ApiError, ApiUnreachableError, SubprocessError) as err:
        print(f"skip {FIGURE}: {err} {' '.join(getattr(err, '__notes__', ()))}".rstrip())
        return 1
    finally:
        controlplane.stop_all(state_dir)
        shutil.rmtree(state_dir, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
