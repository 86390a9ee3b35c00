"""Is the example of the documentation a plugin that can be built, installed and held against the contract?"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "runtime-plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugin, out of the wheel that was built of it."""
    folder = tmp_path_factory.mktemp("plugin")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, check=True, capture_output=True, cwd=EXAMPLE)
    (wheel,) = folder.glob("*.whl")
    # A wheel of Python alone is installed by unpacking it.
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def run(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *command], env=env, cwd=site, capture_output=True, text=True, check=False
    )


def test_it_keeps_the_contract(installed: Path) -> None:
    done = run(
        installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "berth.runtimes.contract",
        "--berth-runtime", "echo",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_it_is_used_only_when_it_is_switched_on(installed: Path) -> None:
    code = "from berth.runtimes.registry import registry; print(sorted(registry({}).runtimes))"
    on, off = (
        run(installed, "-c", code.format(names)).stdout for names in ("('echo',)", "('max',)")
    )
    assert (on, off) == ("['echo']\n", "['max']\n")
