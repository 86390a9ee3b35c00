"""How is a running engine, how much has it in hand, and has it advanced? By its own HTTP API.

llama.cpp: ``/health`` (503 while it loads), ``/slots``, ``/metrics`` (tools/server/README.md). vLLM
and SGLang: ``/health`` and ``/metrics``. Any other engine: the health path alone.
"""

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx

from berth.agent.health import Counters as Done
from berth.agent.health import Look
from berth.api.runner import RunnerSpec
from berth.runtimes.base import Counters
from berth.runtimes.told import told_traits

TIMEOUT_S = 3.0
"""A look that takes longer shows nothing; a busy engine answers late, and is looked at again."""


@dataclass(frozen=True)
class Target:
    """One engine to look at."""

    host: str
    port: int
    counters: Counters | None = None
    """What it calls its figures; None: it has none."""
    health_path: str = "/health"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def target_of(host: str, spec: RunnerSpec) -> Target:
    """How a Runner's engine is looked at: as the Runner says."""
    traits = told_traits(spec)
    return Target(host, spec.port, traits.counters, traits.health_path)


Probe = Callable[[Target], Awaitable[Look]]
"""Looks at an engine once. Never raises: what cannot be learnt is False or None."""


_LINE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})?\s+(\S+)", re.MULTILINE)


class HttpProbe:
    """The probe over real HTTP; one connection pool for all runners of a node."""

    def __init__(self, client: httpx.AsyncClient | None = None) -> None:
        # Engines close what was idle for 5 s: a connection is not kept from one look to the next.
        limits = httpx.Limits(max_connections=256, keepalive_expiry=2.0)
        self._client = client or httpx.AsyncClient(
            timeout=TIMEOUT_S, limits=limits, trust_env=False
        )

    async def versions(self, host: str, port: int) -> dict[str, str]:
        """What the runner program at this control port has found out; empty as long as it has not."""
        status, text = await self._get(Target(host, port), "/state")
        try:
            said = json.loads(text).get("versions") if status == httpx.codes.OK else None
        except (ValueError, AttributeError):
            return {}
        return (
            {str(k)[:64]: str(v)[:256] for k, v in said.items()} if isinstance(said, dict) else {}
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def __call__(self, target: Target) -> Look:
        names = target.counters
        if names is None:
            return health_only(await self._get(target, target.health_path))
        health, metrics = await asyncio.gather(
            self._get(target, target.health_path), self._get(target, names.path)
        )
        figures = read_metrics(metrics[1]) if metrics[0] == httpx.codes.OK else {}
        slots = ""
        if names.slots and (_sum(figures, names.busy) or not figures):
            slots = await self._slots(target, answered=health[0] == httpx.codes.OK)
        return combine(health, names, figures, slots)

    async def _slots(self, target: Target, *, answered: bool) -> str:
        """A long answer moves no counter of llama.cpp's metrics before its end, but its slot."""
        if not answered:
            return ""
        status, text = await self._get(target, "/slots")
        return text if status == httpx.codes.OK else ""

    async def _get(self, target: Target, path: str) -> tuple[int, str]:
        try:
            answer = await self._client.get(target.url + path)
        except (httpx.HTTPError, httpx.InvalidURL, OSError):
            return 0, ""
        return answer.status_code, answer.text


def health_only(health: tuple[int, str]) -> Look:
    """Of an engine whose figures are unknown: only whether it is there."""
    status = health[0]
    return Look(healthy=status == httpx.codes.OK, loading=status in (0, 503))


def combine(
    health: tuple[int, str], names: Counters, figures: Mapping[str, float], slots: str
) -> Look:
    """One look out of the pages of one engine."""
    status = health[0]
    busy = _sum(figures, names.busy)
    rows = read_slots(slots) if slots else None
    if busy is None and rows is not None:
        busy = sum(slot.is_processing for slot in rows)
    progress = _progress(names, figures, rows)
    if status == httpx.codes.SERVICE_UNAVAILABLE and busy is None:
        busy = 0  # it still loads: nothing can be in hand
    return Look(
        healthy=status == httpx.codes.OK,
        loading=status in (0, httpx.codes.SERVICE_UNAVAILABLE),
        busy=busy,
        progress=progress,
        counters=_counters(names, figures),
    )


def read_metrics(text: str) -> dict[str, float]:
    """The figures of a Prometheus page by name, summed over labels; lines that do not parse left out."""
    figures: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        try:
            figures[name] = figures.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return {name: value for name, value in figures.items() if math.isfinite(value)}


@dataclass(frozen=True)
class Slot:
    """One slot of llama.cpp: its task, and tokens read and written for that so far."""

    is_processing: bool
    task: int = 0
    read: int = 0
    written: int = 0


def read_slots(text: str) -> list[Slot] | None:
    """llama.cpp's ``/slots``. None: it is not that page."""
    try:
        return [
            Slot(
                is_processing=bool(row["is_processing"]),
                task=int(row.get("id_task", 0)),
                read=int(row.get("n_prompt_tokens_processed", 0)),
                written=_decoded(row),
            )
            for row in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _decoded(row: Mapping[str, object]) -> int:
    """Newer builds list ``next_token`` per sequence, older ones hold one."""
    found = row.get("next_token")
    entries = found if isinstance(found, list) else [found]
    return sum(int(entry.get("n_decoded", 0)) for entry in entries if isinstance(entry, dict))


def _sum(figures: Mapping[str, float], names: tuple[str, ...]) -> int | None:
    values = [figures[name] for name in names if name in figures]
    return int(sum(values)) if values else None


def _progress(
    names: Counters, figures: Mapping[str, float], slots: list[Slot] | None
) -> dict[str, int]:
    wanted = (names.prompt_tokens, names.tokens, *names.progress)
    found = {name: int(figures[name]) for name in wanted if name in figures}
    if slots is not None:
        working = [slot for slot in slots if slot.is_processing]
        found["tasks"] = sum(slot.task for slot in working)
        found["read"] = sum(slot.read for slot in working)
        found["written"] = sum(slot.written for slot in working)
    return found


def _counters(names: Counters, figures: Mapping[str, float]) -> Done | None:
    if not figures:
        return None
    return Done(
        served=int(sum(figures.get(name, 0) for name in names.served)),
        prompt_tokens=int(figures.get(names.prompt_tokens, 0)),
        tokens=int(figures.get(names.tokens, 0)),
    )
