"""Whose header is read next? Nobody's silent source keeps the others of its namespace waiting."""

import asyncio

import pytest

from berth.headers import pool as pools
from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.pool import HeaderPool
from berth.headers.request import HeaderRequest, HeaderResult, UrlSource

RESULT = HeaderResult.__new__(HeaderResult)


class Reads:
    """Sources of the host ``silent`` never answer; what runs just now is counted."""

    def __init__(self) -> None:
        self.now: list[HeaderRequest] = []
        self.most = 0

    async def __call__(self, request: HeaderRequest) -> HeaderResult:
        self.now.append(request)
        self.most = max(self.most, len(self.now))
        try:
            await asyncio.sleep(60 if "silent" in str(request.source) else 0.01)
        finally:
            self.now.remove(request)
        return RESULT


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found = Reads()
    monkeypatch.setattr(pools, "_read_in_child", found)
    return found


def _of(host: str, namespace: str = "a") -> HeaderRequest:
    return HeaderRequest(source=UrlSource(f"https://{host}/m.gguf"), namespace=namespace)


async def test_silent_sources_do_not_keep_others_of_their_namespace_waiting(reads: Reads) -> None:
    pool = HeaderPool()
    silent = [asyncio.create_task(pool.read(_of("silent"))) for _ in range(12)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(5):
            await asyncio.gather(*(pool.read(_of("hub")) for _ in range(20)))
            await asyncio.gather(*(pool.read(_of("hub", "b")) for _ in range(20)))
        assert len(reads.now) == 2
    finally:
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)


async def test_one_namespace_leaves_a_place_to_the_others(reads: Reads) -> None:
    pool = HeaderPool()
    hosts = [f"silent-{number}" for number in range(9)]
    silent = [asyncio.create_task(pool.read(_of(host))) for host in hosts]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(5):
            await asyncio.gather(*(pool.read(_of("hub", "b")) for _ in range(9)))
        assert reads.most == 4
    finally:
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)


async def test_who_gives_up_waiting_or_runs_out_of_time_frees_the_place(reads: Reads) -> None:
    pool = HeaderPool(total=1, deadline_s=0.1)
    first = asyncio.create_task(pool.read(_of("silent")))
    second = asyncio.create_task(pool.read(_of("hub")))
    third = asyncio.create_task(pool.read(_of("hub")))
    await asyncio.sleep(0.02)
    second.cancel()
    assert await third is RESULT
    with pytest.raises(HeaderError) as told:
        await first
    assert told.value.reason is HeaderReason.SOURCE_TOO_SLOW
    assert reads.now == []
