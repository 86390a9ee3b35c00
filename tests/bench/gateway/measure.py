"""What does the gateway cost beside Go's ReverseProxy, with everything that it does switched on?

``python tests/bench/gateway/measure.py [--rounds N] [CELL …]`` starts an engine, Go's proxy and the
gateway (one CPU for both proxies, the other for engine and load, rounds interleaved) and prints
``ratio NAME VALUE goal GOAL``. Above 1 the gateway is the better one. Needs Go and two CPUs.

- gateway-json, gateway-sse, gateway-paced, gateway-body: requests or tokens per CPU second.
- gateway-delay-p99: delay of a token, 99th percentile at 200 streams; theirs over ours.
- gateway-tokens: tokens per second through the gateway over straight from the engine.
- gateway-added-first, gateway-added-token: what 4 streams wait longer than straight from the engine, in
  the median; the limits, 1 ms and 0.25 ms, over that.
- gateway-memory: 60 MiB over the most memory (proportional set size) at 1,000 streams.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "berth-bench"
KEY = "bench-key-0123456789"
GOALS = {
    "gateway-json": 1.0,
    "gateway-sse": 1.0,
    "gateway-paced": 1.25,
    "gateway-body": 1.5,
    "gateway-delay-p99": 1.0,
    "gateway-tokens": 0.99,
    "gateway-added-first": 1.0,
    "gateway-added-token": 1.0,
    "gateway-memory": 1.0,
}
PRIORITY = ["chrt", "--rr", "1"] if os.geteuid() == 0 else []
"""Before whatever else the machine does, where that is allowed: delays are the scheduler's otherwise."""
FIRST_MS, TOKEN_MS, MEMORY_MIB = 1.0, 0.25, 60.0
SPANS = {"json": "1s", "sse": "1s", "paced": "3s", "quiet": "3s", "many": "4s", "body": "2s"}


@dataclass(frozen=True)
class Process:
    """Something that listens."""

    name: str
    url: str
    pid: int

    @property
    def target(self) -> str:
        return f"{self.name}={self.url}@{self.pid}"


def build() -> Path:
    """The Go program, built once for each state of its sources (go's own cache sees to that)."""
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / "bench"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE, check=True)
    return program


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(name: str, port: int, command: list[str], cpu: int, **env: str) -> Iterator[Process]:
    """A program on one CPU while the block lasts, once it answers."""
    whole = [*PRIORITY, "taskset", "-c", str(cpu), *command]
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(whole, env={**os.environ, **env}, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _await(f"{url}/healthz", child, log)
            yield Process(name, url, child.pid)
        finally:
            child.terminate()
            child.wait(20)


def _await(url: str, child: subprocess.Popen[bytes], log) -> None:
    for _ in range(400):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=2).read()
            return
        if child.poll() is not None:
            break
        time.sleep(0.05)
    log.seek(0)
    raise SystemExit(f"{url} does not answer:\n{log.read().decode(errors='replace')}")


@contextlib.contextmanager
def everything(program: Path, folder: Path) -> Iterator[list[Process]]:
    """Gateway, Go's proxy and engine."""
    engine_port, proxy_port, port = free_port(), free_port(), free_port()
    static = folder / "models.json"
    static.write_text(
        json.dumps({"models": [{"id": "bench", "upstreams": [f"127.0.0.1:{engine_port}"]}]})
    )
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "bench", "key": KEY}]}))
    command = [sys.executable, "-m", "berth.gateway.main", "--static", str(static)]
    settings = {
        "BERTH_HOST": "127.0.0.1",
        "BERTH_PORT": str(port),
        "BERTH_KEYS_FILE": str(keys),
        "BERTH_GATEWAY_GRACE": "0s",
        # As the image sets them: bodies of megabytes are otherwise mapped and unmapped each time.
        "MALLOC_MMAP_THRESHOLD_": "67108864",
        "MALLOC_TRIM_THRESHOLD_": "134217728",
    }
    engine_command = [str(program), "engine", "-addr", f"127.0.0.1:{engine_port}"]
    with running("engine", engine_port, engine_command, 1) as engine:
        proxy_command = [
            str(program),
            "proxy",
            "-addr",
            f"127.0.0.1:{proxy_port}",
            "-upstream",
            engine.url,
        ]
        with (
            running("go", proxy_port, proxy_command, 0) as proxy,
            running("gateway", port, command, 0, **settings) as gateway,
        ):
            yield [gateway, proxy, engine]


def measure(
    program: Path, processes: list[Process], cell: str, rounds: int
) -> dict[str, list[dict]]:
    """Samples by target, in order of rounds."""
    command = [
        *(*PRIORITY, "taskset", "-c", "1", str(program), "load", "-cell", cell, "-key", KEY),
        *("-rounds", str(rounds), "-span", SPANS[cell]),
        *("-targets", ",".join(process.target for process in processes)),
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, list[dict]] = {process.name: [] for process in processes}
    for line in output.splitlines():
        sample = json.loads(line)
        found[sample["target"]].append(sample)
    return {name: sorted(samples, key=lambda s: s["round"]) for name, samples in found.items()}


def ratio(theirs: list[float], ours: list[float]) -> float:
    """The median over rounds: what else the machine does weighs on both alike within a round."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True) if b)


def cost(samples: list[dict], unit: str) -> list[float]:
    """CPU seconds for one request or token."""
    return [s["cpu"] / s[unit] for s in samples if s[unit]]


def added(found: dict[str, list[dict]], delay: str) -> float:
    """Milliseconds more than straight from the engine; what cannot be told from none counts as 1 µs."""
    pairs = zip(found["gateway"], found["engine"], strict=True)
    return max(0.001, statistics.median(a[delay] - b[delay] for a, b in pairs))


def ratios(cell: str, found: dict[str, list[dict]]) -> dict[str, float]:
    """What a cell says."""
    if cell == "quiet":
        return {
            "gateway-added-first": FIRST_MS / added(found, "first_p50_ms"),
            "gateway-added-token": TOKEN_MS / added(found, "delay_p50_ms"),
        }
    if cell == "many":
        most = statistics.median(s["memory_mib"] for s in found["gateway"])
        return {"gateway-memory": MEMORY_MIB / most}
    unit = "tokens" if cell in ("sse", "paced") else "requests"
    values = {f"gateway-{cell}": ratio(cost(found["go"], unit), cost(found["gateway"], unit))}
    if cell == "paced":
        delays = {name: [s["delay_p99_ms"] for s in samples] for name, samples in found.items()}
        values["gateway-delay-p99"] = ratio(delays["go"], delays["gateway"])
        speed = {
            name: [s["tokens"] / s["seconds"] for s in samples] for name, samples in found.items()
        }
        values["gateway-tokens"] = ratio(speed["gateway"], speed["engine"])
    return values


def show(cell: str, found: dict[str, list[dict]]) -> None:
    """The figures behind the ratios."""
    for name, samples in found.items():
        middle = {
            key: statistics.median(s[key] for s in samples)
            for key in (
                "requests",
                "tokens",
                "cpu",
                "first_p50_ms",
                "delay_p50_ms",
                "delay_p99_ms",
                "memory_mib",
            )
        }
        errors = sum(s["errors"] for s in samples)
        text = "  ".join(f"{key} {value:.4g}" for key, value in middle.items())
        print(f"# {cell:6} {name:8} {text}  errors {errors}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "cells", nargs="*", default=["json", "sse", "paced", "body", "quiet", "many"]
    )
    arguments = parser.parse_args()
    program = build()
    with tempfile.TemporaryDirectory() as folder, everything(program, Path(folder)) as processes:
        for cell in arguments.cells:
            found = measure(program, processes, cell, arguments.rounds)
            show(cell, found)
            for name, value in ratios(cell, found).items():
                print(f"ratio {name} {value:.2f} goal {GOALS.get(name, 1.0)}", flush=True)


if __name__ == "__main__":
    main()
