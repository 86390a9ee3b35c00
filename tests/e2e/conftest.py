"""What do the tests on a whole node share?"""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A host is one cluster's node at a time: tests that end theirs come before those that share one."""
    items.sort(key=lambda item: "test_cluster" not in item.nodeid)
