"""Which Go programs does the cluster run, and how are they built once and then found again?

Each is a small module of its own with pinned versions, so that the key of its cached binary is a
hash of a few files and not of a whole dependency graph.
"""

import functools
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from cluster import cache
from cluster.problem import Problem
from cluster.progress import say

HERE = Path(__file__).parent
KUBERNETES_VERSION = "v1.37.2"
HELM_VERSION = "v3.22.0"
GO_MINIMUM = (1, 26)


@dataclass(frozen=True)
class Program:
    """A Go main package inside one of our pinned modules."""

    name: str
    module: Path
    package: str
    ldflags: str = "-s -w"
    minutes: int = 4
    """How long a cold build takes on two cores; only told to the person who waits."""

    def inputs(self) -> list[str | bytes | Path]:
        pinned = [self.module / name for name in ("go.mod", "go.sum")]
        sources = [*sorted(self.module.glob("*.go")), *(path for path in pinned if path.exists())]
        return [self.package, self.ldflags, go_version(), *sources]


def _stamped(**values: str) -> str:
    """Linker flags that strip the program and set variables of its packages, as releases do."""
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in values.items())])


def _kube_ldflags() -> str:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    version = "k8s.io/component-base/version"
    return _stamped(
        **{
            f"{version}.gitVersion": KUBERNETES_VERSION,
            f"{version}.gitMajor": major,
            f"{version}.gitMinor": minor,
        }
    )


def _helm_ldflags() -> str:
    """Unstamped, helm takes every cluster that it cannot ask for a Kubernetes 1.20."""
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    stamps = {"helm.sh/helm/v3/internal/version.version": HELM_VERSION}
    for package in ("lint/rules", "chartutil"):
        stamps[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMajor"] = major
        stamps[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMinor"] = minor
    return _stamped(**stamps)


KUBE = Program("kube", HERE / "kube", ".", ldflags=_kube_ldflags(), minutes=11)
HELM = Program("helm", HERE / "tools" / "helm", "helm.sh/helm/v3/cmd/helm", ldflags=_helm_ldflags())
COREDNS = Program("coredns", HERE / "tools" / "coredns", ".")
PAUSE = Program("pause", HERE / "tools" / "pause", ".", minutes=0)
KWOK = Program("kwok", HERE / "tools" / "kwok", "sigs.k8s.io/kwok/cmd/kwok")
PROGRAMS = {program.name: program for program in (KUBE, HELM, COREDNS, KWOK, PAUSE)}


def go_version() -> str:
    try:
        answer = subprocess.run(
            ["go", "env", "GOVERSION", "GOOS", "GOARCH"], capture_output=True, text=True, check=True
        )
    except FileNotFoundError as err:
        raise Problem("Go is not installed", todo="install Go 1.26 or newer") from err
    found = answer.stdout.split()
    numbers = re.match(r"go(\d+)\.(\d+)", found[0])
    if numbers and tuple(map(int, numbers.groups())) < GO_MINIMUM:
        raise Problem(f"Go is {found[0]}", todo="install Go 1.26 or newer")
    return " ".join(found)


def path_of(program: Program) -> Path:
    """Where the built program is, or will be once `binary` has built it."""
    return cache.root() / "bin" / _entry_name(program)


@functools.cache
def _entry_name(program: Program) -> str:
    return f"{program.name}-{cache.digest(*program.inputs())}"


def binary(program: Program) -> Path:
    """The built program; builds it first where the cache has none. Raises Problem if that fails."""
    return cache.entry("bin", _entry_name(program), make=lambda draft: _build(program, draft))


def _build(program: Program, target: Path) -> None:
    cache.require_space(target.parent, needed=8 << 30, purpose=f"building {program.name}")
    say(f"building {program.name} (about {program.minutes} minutes the first time on two cores)")
    log = cache.root() / "log" / f"build-{program.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w") as output:
        # Tests and editors stay responsive while the compiler has every core.
        status = subprocess.run(
            ["nice", "-n", "10", "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly",
             "-ldflags", program.ldflags, "-o", str(target), program.package],
            cwd=program.module, env=os.environ | {"CGO_ENABLED": "0"}, stdout=output, stderr=output,
            check=False,
        ).returncode  # fmt: skip
    if status != 0:
        tail = "\n".join(log.read_text().splitlines()[-8:])
        raise Problem(
            f"go build of {program.name} failed:\n{tail}\n",
            todo=f"see {log}; a module that could not be fetched means GOPROXY is out of reach",
        )
    say(f"built {program.name} in {time.monotonic() - began:.0f} s")
