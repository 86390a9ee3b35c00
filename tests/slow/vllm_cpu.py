"""Does a real vLLM take the command that Berth makes, claim the bytes that were priced, and answer? By hand, on CPUs.

``PYTHONPATH=tests .venv/bin/python -m slow.vllm_cpu VENV MODEL``: VENV has a vLLM that runs on CPUs, MODEL is a
folder with a small model. It is no part of any test run and stands behind no line of the documentation until
it has run to its end. The figures are printed; anything wrong ends it with a message and status 1.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from berth.agent.probe import combine, read_metrics
from berth.api.profile import ProfileFields
from berth.headers.local import read_path
from berth.runner.smoke import SmokeTest, smoke_fault
from berth.runtimes.base import Job, Launch, Probe
from berth.runtimes.probes import probe_request
from berth.runtimes.registry import runtime

DEADLINE_S = 300
CONTEXT, PARALLEL = 1024, 2


def main(venv: Path, model: Path) -> None:
    facts, _ = read_path(str(model))
    engine = runtime("vllm")
    fields = ProfileFields(context_length=CONTEXT, parallel=PARALLEL)
    job = Job(facts, fields, hardware="cpu", name="tiny")
    wrong = [f.text for f in engine.check(job) if f.level == "error"]
    assert not wrong, wrong
    (way,) = engine.ways(job)
    port = 8123
    launch = Launch(model=str(model), name="tiny", host="127.0.0.1", port=port)
    words = engine.command(way.settings, launch)
    print("command:", " ".join(words))
    env = os.environ | dict(engine.environment(way.settings)) | OFFLINE
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    log = Path("/tmp/vllm-cpu.log")
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(venv / "bin" / "python"), *SERVER, "--model", words[2], *words[3:]], env=env, stdout=out, stderr=out, start_new_session=True
        )  # fmt: skip
    try:
        began = time.monotonic()
        wait(process, port, log)
        print(f"up after {time.monotonic() - began:.0f} s")
        look(port, way.settings.found.kv_cache, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


SERVER = ("-m", "vllm.entrypoints.openai.api_server")
"""In place of ``vllm serve``, whose program some builds for CPUs do not start; the flags are the same."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1"}


def wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"vLLM ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise SystemExit(f"not up within {DEADLINE_S} s:\n{log.read_text()[-3000:]}")


def look(port: int, priced: int, log: Path) -> None:
    """Each declared probe is answered, the counters move, and the cache is as many bytes as were priced."""
    counters = runtime("vllm").traits.counters
    assert counters is not None
    for probe in runtime("vllm").traits.probes:
        path, body = probe_request(probe, model="tiny", prompt="Say hello.")
        fault = smoke_fault(SmokeTest(path, json.dumps(body)), "127.0.0.1", port)
        print(f"{probe} by {path}: {fault or 'answered'}")
        assert not fault or probe is not Probe.CHAT
    page = httpx.get(f"http://127.0.0.1:{port}{counters.path}").text
    seen = combine((200, ""), counters, read_metrics(page), "")
    print("counters:", seen.busy, seen.counters, dict(seen.progress))
    assert seen.busy == 0
    assert seen.counters is not None
    assert seen.counters.tokens > 0
    said = re.search(r"kv_cache_memory_bytes=\"(\d+)\"", page)
    tokens = re.search(r"KV cache size: ([\d,]+) tokens", log.read_text())
    print(
        f"cache: priced {priced} bytes, the engine says {said and said.group(1)}; {tokens and tokens.group(0)}"
    )
    assert said is not None
    assert int(said.group(1)) == priced
    assert tokens is not None
    assert int(tokens.group(1).replace(",", "")) >= CONTEXT * PARALLEL


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
