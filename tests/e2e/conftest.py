"""What do the tests on a whole node share?"""

from collections.abc import Iterator

import pytest

from e2e.installed import Installed, installed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A host is one cluster's node at a time: tests that end theirs come before those that share one."""
    items.sort(key=lambda item: "test_cluster" not in item.nodeid)


@pytest.fixture(scope="session")
def berth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Berth as its chart installs it, on a real node; all tests but those of the cluster share it."""
    with installed(tmp_path_factory.mktemp("berth")) as running:
        yield running
