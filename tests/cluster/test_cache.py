"""Is a dear thing made once, and made again only when its inputs change?"""

from pathlib import Path

import pytest

from cluster import build, cache, ports
from cluster.problem import Problem


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_an_entry_is_made_once():
    made: list[Path] = []

    def make(draft: Path) -> None:
        made.append(draft)
        draft.write_text("dear")

    paths = {cache.entry("things", "one", make=make) for _ in range(3)}
    assert [path.read_text() for path in paths] == ["dear"]
    assert len(made) == 1


def test_what_failed_half_way_leaves_no_entry(tmp_path: Path):
    def make(draft: Path) -> None:
        draft.write_text("half")
        raise Problem("it broke", todo="mend it")

    with pytest.raises(Problem, match="it broke; mend it"):
        cache.entry("things", "one", make=make)
    assert list((tmp_path / "berth" / "things").iterdir()) == []


def test_a_digest_tells_where_one_part_ends():
    assert cache.digest("ab", "c") != cache.digest("a", "bc")


def test_a_tree_digest_sees_names_and_contents(tmp_path: Path):
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a").write_text("1")
    first = cache.tree_digest(folder)
    (folder / "a").rename(folder / "b")
    renamed = cache.tree_digest(folder)
    (folder / "b").write_text("2")
    assert len({first, renamed, cache.tree_digest(folder)}) == 3


def test_too_little_disk_says_how_much_is_wanted(tmp_path: Path):
    with pytest.raises(Problem, match=r"building needs 1048576 GiB of disk"):
        cache.require_space(tmp_path, needed=1 << 50, purpose="building")


@pytest.mark.parametrize("program", build.PROGRAMS.values(), ids=lambda program: program.name)
def test_every_program_is_pinned_by_a_module_of_its_own(program: build.Program):
    assert (program.module / "go.mod").exists()
    assert build.path_of(program).name.startswith(f"{program.name}-")


def test_free_ports_are_distinct_and_below_those_of_outgoing_connections():
    found = ports.free(20)
    assert len(set(found)) == 20
    assert all(ports.LOWEST <= port <= ports.HIGHEST for port in found)
