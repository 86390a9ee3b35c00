"""The cluster that the api tests share: see ``cluster.stack``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.bay import Bay
from api.bay import bay as open_bay
from cluster import stack as stacks
from cluster.stack import Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An API server with controller, gateway and played nodes; one for each test worker."""
    with stacks.running(tmp_path_factory.mktemp("stack"), audit=True) as running:
        yield running


@pytest.fixture
def bay(stack: Stack) -> Iterator[Bay]:
    """A namespace and nodes that this test has for itself."""
    with open_bay(stack) as here:
        yield here


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs an API server."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.api)
