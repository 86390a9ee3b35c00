"""How is a small cluster written down in a test? Values of the planner, in GiB and with good defaults."""

from dataclasses import replace
from typing import Any

from berth.planner.state import (
    Claim,
    Device,
    Drain,
    Model,
    Need,
    Node,
    Policy,
    Restarts,
    Runner,
    Stage,
    State,
)
from berth.reasons import Reason
from berth.units import Bytes

GIB = 1 << 30
NOW = 10_000.0
"""The present in every test that does not say otherwise."""


def gib(size: float) -> Bytes:
    """Bytes of so many GiB."""
    return Bytes(int(size * GIB))


def device(
    index: int = 0,
    capacity: float = 25.6,
    *,
    used: float | None = 0.0,
    unified: bool = False,
    node: str = "gpu-1",
) -> Device:
    """A GPU, by default 25.6 GiB of which 24 are for runners (a sixteenth stays free)."""
    return Device(
        uuid=f"GPU-{node}-{index}",
        index=index,
        capacity=gib(capacity),
        used=None if used is None else gib(used),
        unified=unified,
        name="Test GPU",
    )


def node(
    name: str = "gpu-1", *, gpus: int = 1, gpu: float = 25.6, host: float = 65.0, **more: Any
) -> Node:
    """A ready node; its host has 64 GiB for runners by default, its files none."""
    devices = more.pop("devices", tuple(device(i, gpu, node=name) for i in range(gpus)))
    files = frozenset(more.pop("files", ()))
    return Node(
        name=name,
        capacity=gib(host),
        available=more.pop("available", gib(host)),
        devices=devices,
        files=files,
        **more,
    )


def cpu_node(name: str = "cpu-1", *, host: float = 65.0, **more: Any) -> Node:
    """A node without a GPU."""
    return node(name, gpus=0, host=host, **more)


def need(gpu: float | None = None, host: float = 1.0, *, gpus: tuple[float, ...] = ()) -> Need:
    """A way to run a model: ``gpu`` GiB on one device, or ``gpus`` on several, or the CPU alone."""
    sizes = gpus or (() if gpu is None else (gpu,))
    return Need(host=gib(host), gpus=tuple(gib(size) for size in sizes))


def model(name: str = "a", gpu: float | None = 10.0, host: float = 1.0, **more: Any) -> Model:
    """A model that nobody wants, with no file to fetch."""
    needs = more.pop("needs", (need(gpu, host),))
    key = name if "/" in name else f"ns/{name}"
    return Model(
        key=key, uid=f"uid-{name}", needs=needs, settings_hash=more.pop("hash", "h1"), **more
    )


def waiting(
    name: str = "a", gpu: float | None = 10.0, *, since: float = NOW - 1, **more: Any
) -> Model:
    """A model that one request waits for."""
    return model(name, gpu, waiting=more.pop("requests", 1), waiting_since=since, **more)


def runner(
    name: str = "a",
    gpu: float | None = 10.0,
    host: float = 1.0,
    *,
    on: str = "gpu-1",
    at: int = 0,
    stage: Stage = Stage.UP,
    **more: Any,
) -> Runner:
    """A runner of model ``name``; up for a quarter of an hour and idle unless told otherwise."""
    key = name if "/" in name else f"ns/{name}"
    uid = more.pop("uid", f"r-{name}")
    devices = () if gpu is None else ((f"GPU-{on}-{at}", gib(gpu)),)
    has_pod = stage in (Stage.STARTING, Stage.UP, Stage.STOPPING)
    return Runner(
        uid=uid,
        name=f"{name}-0-0",
        model=key,
        node=on,
        claim=more.pop("claim", Claim(gib(host), devices)),
        stage=stage,
        up_since=more.pop("up_since", NOW - 900 if stage is Stage.UP else None),
        created=more.pop("created", NOW - 960),
        pod_exists=more.pop("pod_exists", has_pod),
        settings_hash=more.pop("hash", "h1"),
        reserved_at=more.pop("reserved_at", NOW - 5 if stage is Stage.RESERVED else None),
        **more,
    )


def draining(what: Runner, reason: Reason = Reason.MAKE_ROOM, **more: Any) -> Runner:
    """The runner with a drain ordered a second ago."""
    since = more.pop("since", NOW - 1)
    order = Drain(reason, since, more.pop("deadline", since + 300), more.pop("newcomer", ""))
    return replace(what, drain=order, **more)


def cluster(*parts: Node | Model | Runner, **more: Any) -> State:
    """A snapshot of these nodes, models and runners; watched for long enough unless told otherwise."""
    return State(
        now=more.pop("now", NOW),
        epoch=1,
        nodes=tuple(part for part in parts if isinstance(part, Node)),
        models=tuple(part for part in parts if isinstance(part, Model)),
        runners=tuple(part for part in parts if isinstance(part, Runner)),
        **more,
    )


def failed(reason: Reason, **more: Any) -> Restarts:
    """The record of one failed load a moment ago."""
    return Restarts(count=more.pop("count", 1), last_failed=NOW - 0.5, reason=reason, **more)


def policy(**more: Any) -> Policy:
    """A residency policy named ``group`` with the cluster's defaults."""
    return Policy(name=more.pop("name", "group"), **more)
