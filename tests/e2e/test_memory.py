"""Does the engine that is pinned today allocate what the estimate says? (Its own log, on generated files)

A new version that changes a rule is seen here on the day it is pinned. Files are written from the facts of the
measured models: the same keys and shapes, all weights zero and most of the file a hole.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from berth.estimator import Buffers, Settings, estimate
from berth.facts import Facts
from berth.headers.local import read_path
from berth.runtimes.llamacpp import BUILD
from berth.runtimes.llamacpp_flags import parse
from cluster import images
from cluster.unpack import unpack
from estimator.engine_log import Logged, read_log
from estimator.files import write_model
from estimator.models import DATA, models

pytestmark = pytest.mark.e2e

MiB = 1 << 20
GRID = (
    "-c 4096 -np 1",
    "-c 8192 -np 4 --no-kv-unified -ub 128 -fa off",
    "-c 4096 -np 3 -kvu -ctk q8_0 -ctv q8_0",
)
MODELS = (
    "t-llama", "t-llama-q4km", "t-mixtral", "t-qwen3moe", "t-gemma2", "t-gemma3", "t-gemma4", "t-phi3", "t-gptoss", "t-deepseek2",
    "t-mamba", "t-mamba2", "t-granitehybrid", "t-lfm2", "qwen3-0.6b-q8", "jamba", "qwen3next", "qwen35", "falconh1",
    "nemotronh", "gemma3n", "rwkv7", "llama4", "cohere2",
)  # fmt: skip


def known() -> dict[str, Facts]:
    """The facts of all measured models."""
    other = json.loads((DATA / "engine_11669.json").read_text())["models"]
    return {**{name: Facts.from_json(row) for name, row in other.items()}, **models()}


@dataclass(frozen=True)
class Engine:
    """llama-server in a root folder of its own."""

    root: Path

    def log(self, model: Path, flags: list[str]) -> Logged:
        """What it logs until its buffers are reserved."""
        command = [
            "chroot",
            str(self.root),
            "/usr/bin/llama-server",
            "-m",
            f"/models/{model.name}",
            "--port",
            "28999",
        ]
        command += ["--no-warmup", "-lv", "4", "--fit", "off", *flags]
        lines = []
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                lines.append(line)
                if "sched_reserve: reserve took" in line:
                    break
            running.kill()
        found = read_log(lines)
        assert found.mib, "".join(lines[-20:])
        return found


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The runner image's own engine, unpacked; ``BERTH_ENGINE_ROOT`` names one that is there already."""
    given = os.environ.get("BERTH_ENGINE_ROOT")
    if given:
        yield Engine(Path(given))
        return
    root = tmp_path_factory.mktemp("engine")
    unpack(images.built(images.LLAMACPP).archive, root)
    yield Engine(root)


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_allocates_what_was_estimated(engine: Engine, name: str) -> None:
    path = engine.root / "models" / f"{name}.gguf"
    path.parent.mkdir(exist_ok=True)
    write_model(known()[name], path)
    facts, _ = read_path(str(path))
    for flags in GRID:
        if "q8_0" in flags and facts.architecture in {"mamba", "mamba2", "rwkv7"}:
            continue
        found = estimate(facts, parse(flags.split(), base=Settings(build=BUILD)).settings)
        log, host = engine.log(path, flags.split()), found.buffers["CPU"]
        assert found.kinds.kv_cache / MiB == pytest.approx(log.total("KV"), abs=0.011 * 2), flags
        assert found.kinds.state / MiB == pytest.approx(log.total("RS"), abs=0.011), flags
        assert host.compute / MiB == pytest.approx(log.total("compute"), abs=0.006), flags
        assert host.output / MiB == pytest.approx(log.total("output"), abs=0.006), flags
        repacked = found.buffers.get("CPU_REPACK", Buffers()).model
        assert repacked / MiB == pytest.approx(log.total("model", owner="CPU_REPACK"), abs=0.006), (
            flags
        )
    path.unlink()
