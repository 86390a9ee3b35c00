"""What does the desk that prices Models keep from one pass to the next?"""

import asyncio
import gc
import weakref
from typing import Any

from berth.controller.prices import Deskwork, PriceDesk, SourceSettings
from berth.controller.pricing import PriceSettings
from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.request import HeaderRequest, HeaderResult
from berth.reasons import Reason
from controller.objects import NOW, model, store


class NothingThere:
    """A pool whose sources are all gone."""

    async def read(self, request: HeaderRequest) -> HeaderResult:
        raise HeaderError(HeaderReason.SOURCE_NOT_FOUND, "404")


class Snapshot:
    """Stands in for what a pass looks at: it is large, and of no use after the pass."""


def _desk() -> PriceDesk:
    missing: Any = NothingThere()
    url = {"url": {"uri": "https://example.org/m.gguf"}}
    return PriceDesk(
        Deskwork(
            kube=missing,
            store=store(models=[model(source=url)]),
            pool=missing,
            sources=SourceSettings(endpoint="https://example.org"),
            settings=PriceSettings(images={}),
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
