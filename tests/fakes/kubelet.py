"""Who plays the pods on nodes that are not there? Every runner pod gets a fake engine that answers.

kwok keeps such nodes ready (annotation ``kwok.x-k8s.io/node: fake``); this program starts a
`FakeEngine` on a loopback address of its own for each pod bound to one of them, makes the pod
Ready when the engine is, and on deletion behaves as the runner program does: it waits until
nothing is in hand, within the pod's grace, and goes.

A profile's ``env`` chooses an engine's behaviour: FAKE_LOAD_SECONDS, FAKE_FIRST_TOKEN_SECONDS,
FAKE_TOKEN_SECONDS, FAKE_TOKENS, FAKE_CRASH_AFTER, FAKE_HANG_AFTER, FAKE_EXIT_CODE (at start),
FAKE_STOP_SECONDS (how long it takes to end).
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berth.api.meta import LABEL_MANAGED, timestamp
from berth.kube.cache import Cache, raw_cache
from berth.kube.client import ApiError, ApiUnreachableError, Kube, Object
from berth.kube.refs import NODES, PODS
from berth.runner.config import parse_config
from berth.runner.exits import ExitCode
from berth.runner.smoke import smoke_fault
from fakes.engine import Behaviour, FakeEngine
from fakes.inspecting import Ended, inspect, is_inspecting

log = logging.getLogger(__name__)
MANAGER = "fake-kubelet"
FAKE_NODE = "kwok.x-k8s.io/node"
POLL_S = 0.05

# Control planes of tests that run side by side must not give two engines one address.
_block = itertools.count(os.getpid() * 61 % 12_000 * 1024)


def _next_address() -> str:
    number = next(_block) % (62 * 65_536)
    return f"127.{64 + number // 65_536}.{number // 256 % 256}.{1 + number % 254}"


@dataclass
class Played:
    """One pod that has an engine."""

    pod: Object
    address: str
    engine: FakeEngine
    stop_s: float = 0.0
    exit_code: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    exit_with: int = 137
    exit_reason: str = "Error"
    said: str = ""
    """The sentence of the report that it ends with."""


@dataclass(frozen=True)
class Meeting:
    """Where the engine of one member of a group was told to meet the others."""

    address: str
    rank: int
    size: int


def _meeting(played: Played) -> Meeting | None:
    """As vLLM is told; None for an engine that is alone. A member told of no address meets nobody."""
    words = _told(played.pod).get("engine", [])
    if "--nnodes" not in words:
        return None

    def after(flag: str) -> str:
        return str(words[words.index(flag) + 1])

    env = {e["name"]: e.get("value", "") for e in played.pod["spec"]["containers"][0]["env"]}
    # A variable of another source than a value is the pod's own address.
    head = env.get("BERTH_HEAD") or (played.address if "BERTH_HEAD" in env else "")
    address = after("--master-addr").replace("$(BERTH_HEAD)", head)
    return Meeting(address, int(after("--node-rank")), int(after("--nnodes")))


class FakeKubelet:
    """Plays every Berth pod on every fake node of one cluster."""

    def __init__(self, kube: Kube, clock: Any, claims: Path | None = None) -> None:
        """``claims``: the folder in which claims have their files."""
        self._kube = kube
        self._clock = clock
        self._claims = claims
        self._nodes: Cache[Object] = raw_cache(kube, NODES)
        self._pods: Cache[Object] = raw_cache(
            kube, PODS, labels=f"{LABEL_MANAGED}=berth", changed=self._changed
        )
        self.played: dict[str, Played] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Play for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            await self._nodes.synced.wait()
            group.create_task(self._pods.run())

    def engine_of(self, pod: str) -> FakeEngine:
        """The engine of the pod ``namespace/name``; KeyError when it has none."""
        return self.played[pod].engine

    def kill(self, pod: str, *, exit_code: int = 137, reason: str = "Error") -> None:
        """The engine of this pod dies at once, as by ``kill -9`` or (reason) ``OOMKilled``."""
        played = self.played[pod]
        played.exit_with, played.exit_reason = exit_code, reason
        played.ended.set()

    def _changed(self, key: str, pod: Object | None) -> None:
        if pod is None or key in self._tasks or not self._is_ours(pod):
            return
        play = self._look if is_inspecting(pod) else self._play
        task = asyncio.get_running_loop().create_task(play(key, pod))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _is_ours(self, pod: Object) -> bool:
        node = self._nodes.get(pod["spec"].get("nodeName") or "")
        if pod.get("status", {}).get("phase") in ("Failed", "Succeeded") and not _deleting(pod):
            return False
        return node is not None and node["metadata"].get("annotations", {}).get(FAKE_NODE) == "fake"

    async def _look(self, key: str, pod: Object) -> None:
        """A pod that looks at a claim: it ends with what it found."""
        try:
            if self._claims is not None and not self._deleted(key):
                await self._tell_found(pod, await inspect(pod, self._claims))
        except (ApiError, ApiUnreachableError) as err:
            log.info("pod %s: %s", key, err)

    async def _tell_found(self, pod: Object, found: Ended) -> None:
        now = self._stamp()
        ended = {
            "exitCode": found.exit_code,
            "reason": "Error" if found.exit_code else "Completed",
            "message": found.message,
            "startedAt": now,
            "finishedAt": now,
        }
        container = _container(False, {"terminated": ended}) | {"name": "inspect"}
        status = {
            "phase": "Failed" if found.exit_code else "Succeeded",
            "conditions": [_condition("Ready", False, now)],
            "containerStatuses": [container],
        }
        await self._apply(pod, status)

    async def _play(self, key: str, pod: Object) -> None:
        """From bound to gone."""
        played = _start(pod)
        self.played[key] = played
        try:
            if await self._come_up(key, played):
                await self._until_asked_to_go(key, played)
            await self._go(key, played)
        except (ApiError, ApiUnreachableError) as err:
            log.info("pod %s: %s", key, err)
        finally:
            self.played.pop(key, None)
            with contextlib.suppress(Exception):
                await played.engine.stop()

    async def _come_up(self, key: str, played: Played) -> bool:
        """Running at once, Ready when loaded; False when it ended or was deleted before."""
        await self._tell(played, ready=False)
        if played.exit_code is not None:
            played.exit_with = played.exit_code
            await self._tell_ended(key, played)
            return False
        played.engine.on_crash = lambda: played.ended.set()
        await played.engine.start(played.address, _port(played.pod))
        while played.engine.is_loading:
            if played.ended.is_set() or self._deleted(key):
                break
            await asyncio.sleep(POLL_S)
        while not played.ended.is_set() and not self._deleted(key) and not self._is_met(played):
            await asyncio.sleep(POLL_S)
        await self._smoke(played)
        if not played.ended.is_set() and not self._deleted(key):
            await self._tell(played, ready=True)
        return True

    def _is_met(self, played: Played) -> bool:
        """Whether the whole group has met at its head; an engine that is alone waits for nobody."""
        mine = _meeting(played)
        if mine is None or mine.rank > 0:
            return True
        there = {
            one.rank
            for other in self.played.values()
            if not other.ended.is_set() and (one := _meeting(other)) is not None
            if one.address == played.address == mine.address
        }
        return there == set(range(mine.size))

    async def _smoke(self, played: Played) -> None:
        """What the runner program does before it says that it is up."""
        test = parse_config(json.dumps(_told(played.pod) or {"engine": ["none"], "port": 1})).smoke
        if test is None or played.ended.is_set():
            return
        fault = await asyncio.to_thread(smoke_fault, test, played.address, _port(played.pod))
        if fault:
            played.exit_with, played.said = ExitCode.SMOKE_FAILED, fault
            played.ended.set()

    async def _until_asked_to_go(self, key: str, played: Played) -> None:
        while not self._deleted(key):
            if played.ended.is_set():
                await played.engine.stop()
                await self._tell_ended(key, played)
                return
            await asyncio.sleep(POLL_S)
        await self._drain(key, played)

    async def _drain(self, key: str, played: Played) -> None:
        """What the runner program does on SIGTERM."""
        pod = self._pods.get(key)
        grace = (pod or played.pod)["metadata"].get("deletionGracePeriodSeconds", 30)
        deadline = asyncio.get_running_loop().time() + grace
        while played.engine.in_flight and asyncio.get_running_loop().time() < deadline:
            if played.ended.is_set():
                break
            await asyncio.sleep(POLL_S)
        await played.engine.stop()
        await asyncio.sleep(min(played.stop_s, max(0.0, grace)))

    async def _go(self, key: str, played: Played) -> None:
        """A deleted pod goes; one that ended stays, as Failed, until somebody deletes it."""
        while not self._deleted(key):
            await asyncio.sleep(POLL_S)
        meta = played.pod["metadata"]
        await self._kube.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace_s=0)

    def _deleted(self, key: str) -> bool:
        pod = self._pods.get(key)
        return pod is None or _deleting(pod)

    async def _tell(self, played: Played, *, ready: bool) -> None:
        now = self._stamp()
        status: dict[str, Any] = {
            "phase": "Running",
            "podIP": played.address,
            "podIPs": [{"ip": played.address}],
            "hostIP": "127.0.0.1",
            "startTime": now,
            "conditions": [
                _condition("Ready", ready, now),
                _condition("ContainersReady", ready, now),
            ],
            "containerStatuses": [_container(ready, {"running": {"startedAt": now}})],
        }
        await self._apply(played.pod, status)

    async def _tell_ended(self, key: str, played: Played) -> None:
        now = self._stamp()
        told = {"reason": "engine-crash", "exitCode": played.exit_with, "lines": []}
        message = json.dumps(told | ({"message": played.said} if played.said else {}))
        ended = {
            "exitCode": played.exit_with,
            "reason": played.exit_reason,
            "message": message,
            "startedAt": now,
            "finishedAt": now,
        }
        status: dict[str, Any] = {
            "phase": "Failed",
            "podIP": played.address,
            "podIPs": [{"ip": played.address}],
            "conditions": [_condition("Ready", False, now)],
            "containerStatuses": [_container(False, {"terminated": ended})],
        }
        if not self._deleted(key):
            await self._apply(played.pod, status)

    async def _apply(self, pod: Object, status: dict[str, Any]) -> None:
        meta = pod["metadata"]
        await self._kube.apply_status(
            PODS, meta["name"], status, manager=MANAGER, namespace=meta["namespace"]
        )

    def _stamp(self) -> str:
        return timestamp(self._clock()).split(".")[0] + "Z"


def _start(pod: Object) -> Played:
    env = environment_of(pod)

    def seconds(name: str) -> float:
        return float(env.get(name) or 0)

    def count(name: str) -> int | None:
        return int(env[name]) if env.get(name) else None

    behaviour = Behaviour(
        kind="vllm" if "vllm" in _told(pod).get("engine", []) else "llamacpp",
        model=pod["metadata"].get("labels", {}).get("berth.dev/model", "fake"),
        load_s=seconds("FAKE_LOAD_SECONDS"),
        first_token_s=seconds("FAKE_FIRST_TOKEN_SECONDS"),
        token_s=seconds("FAKE_TOKEN_SECONDS"),
        tokens=count("FAKE_TOKENS") or 16,
        slots=int(env.get("FAKE_SLOTS") or 64),
        crash_after=count("FAKE_CRASH_AFTER"),
        hang_after=count("FAKE_HANG_AFTER"),
    )
    return Played(
        pod=pod,
        address=_next_address(),
        engine=FakeEngine(behaviour),
        stop_s=seconds("FAKE_STOP_SECONDS"),
        exit_code=count("FAKE_EXIT_CODE"),
    )


def environment_of(pod: Object) -> dict[str, str]:
    container = pod["spec"]["containers"][0]
    env = {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}
    return env | dict(_told(pod).get("env", {}))


def _told(pod: Object) -> dict[str, Any]:
    for entry in pod["spec"]["containers"][0].get("env", []):
        if entry["name"] == "BERTH_RUNNER":
            told: dict[str, Any] = json.loads(entry["value"])
            return told
    return {}


def _port(pod: Object) -> int:
    return int(_told(pod).get("port", 8080))


def _deleting(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _condition(kind: str, value: bool, now: str) -> dict[str, Any]:
    return {"type": kind, "status": str(value), "lastTransitionTime": now}


def _container(ready: bool, state: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "engine",
        "ready": ready,
        "started": "running" in state,
        "restartCount": 0,
        "image": "fake",
        "imageID": "fake",
        "state": state,
    }
