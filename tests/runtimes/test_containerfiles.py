"""Do the images' build files pin what they build on, run without rights, and hold the runner program?

Most of them cannot be built where tests run; what can be read in them is held here.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from berth.runtimes.registry import BUILT_IN

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "runner-image").glob("*/Containerfile*"))
RUNNER = "berth-runner=${RUNNER_VERSION}"


@dataclass
class Build:
    """One build file: its instructions in order, and the default of every argument."""

    steps: list[tuple[str, str]] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)

    def all(self, name: str) -> list[str]:
        return [text for step, text in self.steps if step == name]

    def labels(self) -> dict[str, str]:
        return dict(re.findall(r'([\w.]+)="([^"]*)"', " ".join(self.all("LABEL"))))

    def filled(self, text: str) -> str:
        """With its arguments' defaults."""
        for _ in range(3):
            text = re.sub(r"\$\{(\w+)\}", lambda m: self.arguments[m.group(1)], text)
        return text


def read(path: Path) -> Build:
    build = Build()
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        step, _, rest = line.partition(" ")
        build.steps.append((step, rest.strip()))
        if step == "ARG" and "=" in rest:
            name, _, default = rest.partition("=")
            build.arguments[name] = default
    return build


@pytest.fixture(params=FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def build(request: pytest.FixtureRequest) -> Build:
    return read(request.param)


def test_every_runtime_with_an_image_has_a_build_file() -> None:
    assert {path.parent.name for path in FILES} == set(BUILT_IN) - {"command"}


def test_what_it_builds_on_is_an_argument_with_a_pinned_default(build: Build) -> None:
    for text in build.all("FROM"):
        base = text.split(" AS ")[0]
        assert re.fullmatch(r"\$\{\w+\}", base), base
        name, _, tag = build.filled(base).rpartition(":")
        assert "/" in name, "the registry is named"
        assert tag not in ("", "latest")


def test_versions_are_arguments_and_stand_in_its_labels(build: Build) -> None:
    assert re.fullmatch(r"[\d.]+", build.arguments["ENGINE_VERSION"])
    labels = build.labels()
    title = labels["org.opencontainers.image.title"]
    assert title == f"berth-runner-{labels['dev.berth.runtime']}"
    assert labels["org.opencontainers.image.base.name"] == "${BASE}"
    assert labels["org.opencontainers.image.licenses"]
    assert labels["dev.berth.sbom"].startswith(RUNNER)
    assert build.arguments["ENGINE_VERSION"] in build.filled(labels["dev.berth.sbom"])


def test_it_runs_the_runner_program_without_rights(build: Build) -> None:
    last = build.steps[max(i for i, (step, _) in enumerate(build.steps) if step == "FROM") :]
    assert [text for step, text in last if step == "USER"] == ["65532:65532"]
    (entry,) = (text for step, text in last if step == "ENTRYPOINT")
    assert json.loads(entry) == ["python3", "-m", "berth.runner"]
    assert [step for step, _ in last][-2:] == ["USER", "ENTRYPOINT"]
    copied = {text.split()[0] for step, text in last if step == "COPY" and "--from" not in text}
    assert copied == {"operator/src/berth/__init__.py", "operator/src/berth/runner"}
    assert all((ROOT / path).exists() for path in copied)


def test_nothing_is_added_from_the_network_unseen(build: Build) -> None:
    assert build.all("ADD") == []
    assert not re.search(r"curl[^|]*\|\s*(ba)?sh", " ".join(build.all("RUN")))


@pytest.mark.parametrize("word", ["GGML_CPU_ALL_VARIANTS=ON", "CMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}", "GGML_NATIVE=OFF"])  # fmt: skip
def test_the_optimised_build_runs_on_any_processor_and_the_cards_that_are_named(word: str) -> None:
    assert word in " ".join(read(ROOT / "runner-image/llamacpp/Containerfile.optimised").all("RUN"))
