"""What does a test of the agent start from? One fake node, one fake API server, one real Agent."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.places import INVENTORIES, NAMESPACE, NODE, RUNNERS
from berth.agent.core import Agent
from berth.agent.health import Look
from berth.agent.host import Host
from berth.agent.probe import HttpProbe, Probe, Target
from berth.agent.site import Timing
from berth.api.inventory import NodeInventory
from berth.api.meta import ANNOTATION_CLAIM, LABEL_MANAGED, LABEL_RUNNER_UID
from berth.api.residency import Residency
from berth.api.runner import AgentStatus
from berth.kube.refs import EVENTS, NODES, PODS, ref_of
from berth.settings import Settings
from fakes.kube import FakeKube
from fakes.node import FakeFiles, FakeNode

FAST = Timing(
    probe_s=0.05, busy_s=0.02, drain_s=0.01, admission_s=0.02, admission_ttl_s=60, inventory_s=0.05
)
DEADLINE_S = 10.0


@dataclass
class FakeProbe:
    """Engines by address, as a test sets them; whoever is not set does not answer."""

    looks: dict[str, Look] = field(default_factory=dict)
    asked: int = 0

    async def __call__(self, target: Target) -> Look:
        self.asked += 1
        return self.looks.get(target.host, Look(healthy=False, loading=True))


IDLE = Look(healthy=True, busy=0, progress={"tokens": 0})
BUSY = Look(healthy=True, busy=1, progress={"tokens": 0})


@dataclass
class World:
    """One node and its cluster."""

    folder: Path
    kube: FakeKube = field(default_factory=FakeKube)
    node: FakeNode = field(default_factory=FakeNode)
    files: FakeFiles = field(default_factory=FakeFiles)
    probe: FakeProbe = field(default_factory=FakeProbe)
    timing: Timing = FAST
    host: Host | None = None
    """In the place of the fake node's, where a test has a real one."""
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kube.put(NODES, {"metadata": {"name": NODE, "labels": {"zone": "a"}}})

    @contextlib.asynccontextmanager
    async def agent(self, probe: Probe | None = None) -> AsyncIterator[Agent]:
        """The agent while the block lasts; a crash of it fails the test."""
        agent = Agent(
            node=NODE,
            kube=self.kube,  # type: ignore[arg-type]
            host=self.host or self.node,
            gpus=self.node,
            files=self.files,
            settings=Settings(self.settings),
            probe=probe or self.probe,
            timing=self.timing,
            journal=self.folder / "journal",
        )
        self.running = agent
        task = asyncio.create_task(agent.run())
        try:
            await self.until(lambda: not agent.not_ready() or task.done(), "the agent is ready")
            yield agent
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def until(self, true: Callable[[], object], what: str) -> None:
        """Wait for a condition, by deadline."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not true():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            statuses = {k: v.get("status") for k, v in self.kube.objects.items() if v.get("status")}
            raise AssertionError(
                f"not within {DEADLINE_S} s: {what}; statuses: {statuses}"
            ) from None

    # -- the controller's part -------------------------------------------------------------------

    def runner(self, name: str = "llama-0", **spec: Any) -> str:
        """Create a Runner, reserved unless said otherwise; gives its uid."""
        obj = runner_object(name, **spec)
        self.kube.put(RUNNERS, obj)
        return obj["metadata"]["uid"]

    def policy(self, **spec: Any) -> None:
        """A Residency for every node."""
        self.kube.put(ref_of(Residency), {"metadata": {"name": "all", "uid": "all"}, "spec": spec})

    def events(self, reason: str) -> list[dict[str, Any]]:
        """The Events that the agent wrote for this reason."""
        written = (o for (plural, *_), o in self.kube.objects.items() if plural == EVENTS.plural)
        return [event for event in written if event["reason"] == reason]

    def edit(self, name: str, **spec: Any) -> None:
        self.kube.change(RUNNERS, name, NAMESPACE, lambda obj: obj["spec"].update(spec))

    def status(self, name: str = "llama-0") -> AgentStatus:
        """What the agent says of it."""
        found = self.kube.status(RUNNERS, name, NAMESPACE).get("agent") or {}
        return AgentStatus.model_validate(found)

    def inventory(self) -> Any:
        return NodeInventory.model_validate(self.kube.objects[INVENTORIES.plural, "", NODE]).status

    # -- the kubelet's part ----------------------------------------------------------------------

    def pod(self, runner: str = "llama-0", *, ip: str = "10.0.0.1", phase: str = "Running") -> str:
        """A pod of a runner on the node; gives its uid."""
        obj = pod_object(runner, self.kube.objects[RUNNERS.plural, NAMESPACE, runner], ip, phase)
        self.kube.put(PODS, obj)
        return obj["metadata"]["uid"]

    def agent_writes(self, name: str = "llama-0") -> int:
        return sum(
            w.plural == RUNNERS.plural and w.key.endswith(f"/{name}") for w in self.kube.writes
        )


def runner_object(name: str, **spec: Any) -> dict[str, Any]:
    fields = {
        "modelRef": {"name": "llama", "uid": "m"},
        "nodeName": NODE,
        "stage": "Reserved",
        "passId": "p1",
        "epoch": 1,
        **spec,
    }
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": fields,
    }


def pod_object(name: str, runner: dict[str, Any], ip: str, phase: str) -> dict[str, Any]:
    uid = runner["metadata"]["uid"]
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"pod-{name}",
            "labels": {LABEL_MANAGED: "berth", LABEL_RUNNER_UID: uid},
            "annotations": {ANNOTATION_CLAIM: json.dumps(runner["spec"].get("claim", {}))},
        },
        "spec": {"nodeName": NODE},
        "status": {"phase": phase, "podIP": ip},
    }


__all__ = ["BUSY", "FAST", "IDLE", "FakeProbe", "HttpProbe", "World"]
