"""When does a burst of changes end?"""

import asyncio
import time

from berth.controller.loop import Bell


async def test_a_pass_begins_once_a_burst_of_changes_has_ended() -> None:
    bell = Bell(0.02)
    bell.ring()
    later = asyncio.get_running_loop().call_later(0.01, bell.ring)
    began = time.monotonic()
    await bell.wait(10)
    assert time.monotonic() - began >= 0.03 - 0.005
    later.cancel()


async def test_what_of_a_burst_fell_into_the_last_pass_counts() -> None:
    """Changes that never stop must not keep every pass half a second."""
    bell = Bell(10)
    bell.ring()
    bell._first -= 0.5  # as if it had been rung half a second ago
    async with asyncio.timeout(5):
        await bell.wait(10)


async def test_nothing_rings_and_the_time_is_over() -> None:
    await Bell(10).wait(0)
