"""Which saved sessions stay on a node, and who can read them?"""

import os
import stat

import pytest

from berth.agent.sessions import SessionShelf

DAY_S = 86400.0


@pytest.fixture
def shelf(tmp_path):
    return SessionShelf(tmp_path, age_s=DAY_S, budget=100)


def saved(shelf, name, size, written):
    """A runner's folder with one file of so many bytes, last written then."""
    folder = shelf.open(name)
    (folder / "slot-0.bin").write_bytes(b"x" * size)
    for path in (folder / "slot-0.bin", folder):
        os.utime(path, (written, written))


def names(tmp_path):
    return sorted(f"{p.parent.name}/{p.name}" for p in (tmp_path / "sessions").glob("*/*"))


def test_a_folder_is_open_to_its_runner_and_closed_to_the_node_whatever_the_umask(shelf, tmp_path):
    before = os.umask(0o077)
    try:
        folder = shelf.open("m/k")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (folder, folder.parent, folder.parent.parent)]
    assert modes == [0o777, 0o711, 0o700]


@pytest.mark.parametrize("name", ["", "m", "m/", "/k", "m/k/x", "../k", "m/.."])
def test_a_name_that_leaves_the_store_is_refused(shelf, name):
    with pytest.raises(ValueError, match="MODEL/KEY"):
        shelf.open(name)


def test_sessions_of_a_model_that_is_gone_go(shelf, tmp_path):
    saved(shelf, "gone/k", 1, written=1000)
    saved(shelf, "here/k", 1, written=1000)
    assert shelf.sweep({"here"}, set(), now=1000) == ["gone/k"]
    assert names(tmp_path) == ["here/k"]


def test_sessions_older_than_a_day_go(shelf):
    saved(shelf, "m/old", 1, written=0)
    saved(shelf, "m/new", 1, written=1)
    assert shelf.sweep({"m"}, set(), now=DAY_S) == ["m/old"]


def test_the_oldest_go_when_they_take_too_much(shelf):
    for written, name in enumerate(("m/a", "m/b", "m/c")):
        saved(shelf, name, 50, written=written)
    assert shelf.sweep({"m"}, set(), now=10) == ["m/a"]


def test_what_a_runner_has_mounted_stays_and_counts(shelf):
    for written, name in enumerate(("gone/a", "m/b", "m/c")):
        saved(shelf, name, 50, written=written)
    assert shelf.sweep({"m"}, {"gone/a"}, now=10) == ["m/b"]


def test_a_node_without_sessions_has_nothing_to_sweep(shelf):
    assert shelf.sweep(set(), set(), now=0) == []
