"""What does the desk that prices Models keep from one pass to the next?"""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

from berth.controller.prices import Deskwork, PriceDesk, SourceSettings
from berth.controller.pricing import PriceSettings
from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.gguf_facts import read_gguf
from berth.headers.read import digest_of
from berth.headers.request import FileRef, HeaderRequest, HeaderResult
from berth.reasons import Reason
from controller.objects import NOW, model, store
from headers.written import gguf, llama, reader, weights


class NothingThere:
    """A pool whose sources are all gone."""

    async def read(self, request: HeaderRequest) -> HeaderResult:
        raise HeaderError(HeaderReason.SOURCE_NOT_FOUND, "404")


class Snapshot:
    """Stands in for what a pass looks at: it is large, and of no use after the pass."""


def _desk(pool: Any = None, *, images: dict[str, str] | None = None, **more: str) -> PriceDesk:
    missing: Any = pool or NothingThere()
    url = {"url": {"uri": "https://example.org/m.gguf", **more}}
    return PriceDesk(
        Deskwork(
            kube=missing,
            store=store(models=[model(source=url)]),
            pool=missing,
            sources=SourceSettings(endpoint="https://example.org"),
            settings=PriceSettings(images=images or {}),
            changed=lambda: None,
            clock=lambda: NOW,
        )
    )


async def test_a_source_that_cannot_be_read_keeps_no_pass_alive() -> None:
    desk = _desk()
    desk.refresh(NOW)
    await asyncio.sleep(0.01)

    def one_pass() -> "weakref.ref[Snapshot]":
        seen = Snapshot()
        desk.refresh(NOW)
        return weakref.ref(seen)

    passes = [one_pass() for _ in range(5)]
    gc.collect()
    assert [seen() for seen in passes] == [None] * 5
    assert [price.blocked for price in desk.prices().values()] == [Reason.SOURCE_NOT_FOUND]


class Changing:
    """A pool with one file whose content is replaced at its address, and that may be away."""

    def __init__(self) -> None:
        self.version, self.asked, self.is_away = 1, 0, False

    async def read(self, request: HeaderRequest) -> HeaderResult:
        self.asked += 1
        if self.is_away:
            raise HeaderError(HeaderReason.SOURCE_UNREACHABLE, "no answer")
        raw = gguf(llama(), weights())
        file = FileRef("https://example.org/m.gguf", "m.gguf", len(raw), None, f"v{self.version}")
        return HeaderResult(read_gguf(reader(raw), len(raw)), (file,), "", digest_of([file]))


async def _until(what: str, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)
    assert holds(), what


async def _priced(desk: PriceDesk, now: float, before: str = "") -> str:
    """The settings once they are others than before, with passes at this moment."""

    def is_new() -> bool:
        desk.refresh(now)
        price = desk.prices().get("ns/m")
        return price is not None and price.settings_hash not in ("", before)

    await _until("there are new settings", is_new)
    return desk.prices()["ns/m"].settings_hash


async def test_h12_the_same_address_with_other_content_is_seen_within_a_quarter_of_an_hour() -> (
    None
):
    pool = Changing()
    desk = _desk(pool, images={"llamacpp/cpu": "image"})
    first = await _priced(desk, NOW)
    pool.version = 2
    desk.refresh(NOW + 60)
    assert pool.asked == 1
    second = await _priced(desk, NOW + 900, first)
    assert pool.asked == 2
    # Nobody answers: what is known goes on, and is asked for again later.
    pool.is_away, pool.version = True, 3
    desk.refresh(NOW + 1501)
    await _until("it was asked for", lambda: pool.asked == 3)
    assert await _priced(desk, NOW + 1502) == second
    pool.is_away = False
    assert await _priced(desk, NOW + 2102, second) != first


async def test_a_url_with_a_checksum_is_read_once() -> None:
    pool = Changing()
    desk = _desk(pool, images={"llamacpp/cpu": "image"}, sha256="f" * 64)
    first = await _priced(desk, NOW)
    pool.version = 2
    assert (await _priced(desk, NOW + 9000), pool.asked) == (first, 1)
