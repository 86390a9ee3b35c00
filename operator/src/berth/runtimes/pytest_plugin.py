"""How does an author of a runtime run the contract tests?

``pytest --pyargs berth.runtimes.contract --berth-runtime NAME [--berth-profile FILE]``, with the plugin installed.
"""

from typing import Any

import pytest

pytest.register_assert_rewrite("berth.runtimes.contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options."""
    group = parser.getgroup("berth")
    group.addoption(
        "--berth-runtime", action="append", default=[], metavar="NAME", help="a runtime that the contract is held against; default: the built-in ones"
    )  # fmt: skip
    group.addoption(
        "--berth-profile", default="", metavar="FILE", help="YAML of a Profile's spec without which that runtime makes no command"
    )  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each runtime."""
    if "berth_runtime" in metafunc.fixturenames:
        from berth.runtimes.registry import BUILT_IN

        names: list[str] = metafunc.config.getoption("--berth-runtime") or list(BUILT_IN)
        metafunc.parametrize("berth_runtime", names)


@pytest.fixture
def berth_profile(request: pytest.FixtureRequest, berth_runtime: str) -> dict[str, Any]:
    """A Profile's spec with which the runtime makes a command."""
    path = str(request.config.getoption("--berth-profile"))
    if path:
        from pathlib import Path

        import yaml

        found: dict[str, Any] = yaml.safe_load(Path(path).read_text())
        return found
    if berth_runtime == "command":
        command = ["serve", "--weights", "{model}", "--listen", "{host}:{port}", "--as", "{name}"]
        return {"command": command, "memory": {"peak": "3Gi"}}
    return {}
