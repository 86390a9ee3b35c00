"""What does the controller take for many models, and what does it write when nothing happens?

``python tests/bench/scale.py [--models N] [--idle SECONDS]`` starts two clusters, one after the other.

- With played nodes (``cluster.stack``): 500 models are declared at once, their files on a server of
  this machine but for one whose server never answers; timed until every other one has its size and the
  silent one its word. Then the controller is ended and started anew. Then 60 of them are loaded, and
  what the programs write is counted in the audit log while nobody asks for anything.
- With kwok's: N models (10,000) with their headers read, on 1,000 nodes; the controller's memory once
  all have their status.

``controller-status``: the seconds until all have a status over the 120 that they may take.
``controller-memory``: bytes of the controller and its children over the limit that the chart sets.
``controller-idle-writes``: writes in the idle stretch, the leader's lease left out.
"""

import argparse
import asyncio
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import SubprocessError

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import placement_fleet as fleet
from bench import placements
from bench.placements import DEMANDS, MODELS, NAMESPACE, each, watched
from berth.api.meta import ANNOTATION_LOAD
from berth.kube.client import ApiError, ApiUnreachableError, Kube, Object
from berth.kube.refs import NAMESPACES
from berth.units import parse_quantity
from cluster import controlplane, stack
from cluster.problem import Problem
from cluster.stack import CHECKOUT, Stack
from fakes.gguf import sparse_llama

STATUS_S = 120.0
SOURCES, LOADED = 500, 60
NODES = 1000
DEADLINE_S = 600.0
MIB = 1 << 20


def limit() -> int:
    """Bytes that the chart lets the controller have."""
    values = yaml.safe_load((CHECKOUT / "charts" / "berth" / "values.yaml").read_text())
    return int(parse_quantity(values["controller"]["resources"]["limits"]["memory"]))


def memory(running: Stack) -> int:
    """Bytes of the controller and of all its children, shared pages counted once."""
    found = running.plane.processes.find("controller")
    if found is None or not found.is_running:
        raise Problem("the controller does not run", todo="read its log")
    return sum(_proportional(pid) for pid in _tree(found.pid))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _tree(int(child))


def _proportional(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


# -- many sources -----------------------------------------------------------------------------------


@contextmanager
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/model.gguf"


async def read_sources(running: Stack, kube: Kube) -> float:
    """Seconds from the first Model to the last status."""
    names = [f"s{n:03d}" for n in range(SOURCES - 1)]
    file = running.hub_root / "files" / "one.gguf"
    sparse_llama(file, weights=1 << 28)
    for name in names:
        os.link(file, file.with_name(f"{name}.gguf"))
    with silent_server() as silent:
        uris = {name: f"{running.hub}/files/{name}.gguf" for name in names} | {"silent": silent}

        async def declare(name: str) -> None:
            spec: Object = {"source": {"url": {"uri": uris[name]}}}
            body = fleet.model(name, NAMESPACE) | {"spec": spec}
            await kube.create(MODELS, body, NAMESPACE)

        async with watched(kube, MODELS, _has_word) as seen:
            began = time.monotonic()
            await each(list(uris), declare)
            written = time.monotonic() - began
            await _heard(seen, set(uris), f"{SOURCES} models have a status")
            took = time.monotonic() - began
    print(
        f"# {SOURCES} models, one of a silent server, declared in {written:.0f} s: all have a status"
        f" after {took:.0f} s; the controller takes {memory(running) // MIB} MiB"
    )
    return took


def _has_word(model: Object) -> str:
    """Its name once it has its size, or, of the silent one, what is being waited for."""
    status, name = model.get("status") or {}, str(model["metadata"]["name"])
    return name if "needs" in status or (name == "silent" and status.get("conditions")) else ""


async def restart(running: Stack, kube: Kube) -> None:
    """Time a new leader until it has loaded a model: it has then looked at all of them."""
    running.plane.processes.stop("controller")
    began = time.monotonic()
    running.start_program("controller")
    await _load(kube, ["s000"])
    print(
        f"# a new leader has loaded a model {time.monotonic() - began:.0f} s after its start,"
        f" at {memory(running) // MIB} MiB"
    )


async def _load(kube: Kube, names: Sequence[str]) -> None:
    async def ask(name: str) -> None:
        wish = {"metadata": {"annotations": {ANNOTATION_LOAD: str(time.time())}}}
        await kube.patch_merge(MODELS, name, wish, namespace=NAMESPACE)

    async with watched(kube, MODELS, _is_up) as seen:
        await each(names, ask)
        await _heard(seen, set(names), f"{len(names)} models are up")


def _is_up(model: Object) -> str:
    return str(model["metadata"]["name"]) if (model.get("status") or {}).get("replicas") else ""


async def idle_writes(running: Stack, kube: Kube, idle_s: float) -> int:
    """Writes of Berth's programs while nobody asks for anything."""
    await _load(kube, [f"s{n:03d}" for n in range(LOADED)])
    await asyncio.sleep(30)
    before = len(list(running.plane.audited()))
    await asyncio.sleep(idle_s)
    entries = [entry for entry in list(running.plane.audited())[before:] if _is_write(entry)]
    leases = sum(entry["objectRef"]["resource"] == "leases" for entry in entries)
    others = Counter(
        f"{entry['verb']} {entry['objectRef']['resource']}"
        for entry in entries
        if entry["objectRef"]["resource"] != "leases"
    )
    print(
        f"# {LOADED} models up, {SOURCES - LOADED} down, nobody asks for {idle_s:.0f} s:"
        f" {leases} writes of leases, others {dict(others)}"
    )
    return others.total()


def _is_write(entry: Object) -> bool:
    """By Berth's programs, which here are an administrator; the cluster's own are left out."""
    return (
        entry["verb"] in ("create", "update", "patch", "delete")
        and not entry["user"]["username"].startswith("system:")
        and entry.get("objectRef", {}).get("resource") != "tokenreviews"
    )


async def sources(state_dir: Path, idle_s: float) -> tuple[float, int]:
    running = stack.start(state_dir, audit=True)
    async with await Kube.connect(kubeconfig=str(running.plane.kubeconfig)) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for number in range(8):
            running.node(f"gpu-{number}", memory=256 << 30, gpus="8x24Gi")
        took = await read_sources(running, kube)
        await restart(running, kube)
        return took, await idle_writes(running, kube, idle_s)


# -- many models ------------------------------------------------------------------------------------


async def hold_models(state_dir: Path, count: int) -> int:
    """Bytes of the controller once each of so many models has its status and its Demand."""
    running = placements.start(state_dir)
    names = [f"m{n:05d}" for n in range(count)]
    facts = fleet.facts()
    async with await Kube.connect(kubeconfig=str(running.plane.kubeconfig)) as kube:
        await placements.furnish(kube, NODES)
        await each(names, lambda name: placements.declare(kube, name, facts))
        began = time.monotonic()
        running.start_program("controller")
        async with watched(kube, MODELS, _has_word) as models:
            await _heard(models, set(names), f"{count} models have their status")
        async with watched(kube, DEMANDS, lambda d: str(d["metadata"]["name"])) as demands:
            await _heard(demands, set(names), f"{count} models have their Demand")
        took = time.monotonic() - began
        await asyncio.sleep(10)
        taken = memory(running)
    print(
        f"# {count} models on {NODES} nodes: all have status and Demand {took:.0f} s after the"
        f" controller's start; it takes {taken // MIB} MiB"
    )
    return taken


async def _heard(seen: placements.Seen, names: set[str], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not names <= seen.names:
                await seen.news.wait()
                seen.news.clear()
    except TimeoutError as err:
        missing = sorted(names - seen.names)
        raise Problem(
            f"not within {DEADLINE_S:.0f} s: {what}; {len(missing)} have not, such as {missing[:3]}",
            todo="choose fewer models",
        ) from err


# -- the whole ----------------------------------------------------------------------------------------


def _with_cluster(figures: Sequence[str], work: Callable[[Path], Sequence[str]]) -> bool:
    state_dir = Path(tempfile.mkdtemp(prefix="berth-bench-"))
    try:
        print("\n".join(work(state_dir)), flush=True)
    except (Problem, ExceptionGroup, ApiError, ApiUnreachableError, SubprocessError) as err:
        for figure in figures:
            print(f"skip {figure}: {_why(err)}".rstrip())
        return False
    finally:
        controlplane.stop_all(state_dir)
        shutil.rmtree(state_dir, ignore_errors=True)
    return True


def _why(err: BaseException) -> str:
    """One line; of several failures the first."""
    while isinstance(err, BaseExceptionGroup):
        err = err.exceptions[0]
    return " ".join((str(err), *getattr(err, "__notes__", ())))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--idle", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--only", choices=("sources", "models"), help="one of the two clusters")
    options = parser.parse_args()

    def first(state_dir: Path) -> list[str]:
        took, writes = asyncio.run(sources(state_dir, options.idle))
        return [
            f"ratio controller-status {took / STATUS_S:.2f} goal 1",
            f"ratio controller-idle-writes {writes} goal 0",
        ]

    def second(state_dir: Path) -> list[str]:
        taken = asyncio.run(hold_models(state_dir, options.models))
        return [f"ratio controller-memory {taken / limit():.2f} goal 1"]

    done = []
    if options.only != "models":
        done.append(_with_cluster(("controller-status", "controller-idle-writes"), first))
    if options.only != "sources":
        done.append(_with_cluster(("controller-memory",), second))
    return 0 if all(done) else 1


if __name__ == "__main__":
    raise SystemExit(main())
