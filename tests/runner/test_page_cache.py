"""Does the page cache of a file that is not read again really go, and only that?"""

import ctypes
import mmap
import os

import pytest

from berth.runner.engine import drop_page_cache

SIZE = 8 << 20


def resident(path) -> float:
    """The share of a file's pages that is in memory, as mincore(2) tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        pages = -(-SIZE // mmap.PAGESIZE)
        seen = (ctypes.c_ubyte * pages)()
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (
            *(ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_int,) * 3,
            ctypes.c_long,
        )
        at = libc.mmap(None, SIZE, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(SIZE), seen) == 0
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(SIZE))
    return sum(page & 1 for page in seen) / pages


@pytest.fixture
def files(tmp_path):
    """Two files that have been read whole."""
    found = [tmp_path / "weights", tmp_path / "table"]
    for path in found:
        with path.open("wb") as file:
            file.write(os.urandom(SIZE))
            os.fsync(file.fileno())
        path.read_bytes()
    if resident(found[0]) < 1:
        pytest.skip("this file system keeps no page cache to look at")
    return found


def test_what_is_not_read_again_goes_and_what_is_stays(files):
    weights, table = files
    assert drop_page_cache((str(weights),)) == []
    assert (resident(weights), resident(table)) == (0, 1)


def test_a_file_that_cannot_be_opened_is_told(tmp_path):
    assert drop_page_cache((str(tmp_path / "none"),)) == [str(tmp_path / "none")]
