"""Which writes of a plan may go out at the same time? Those that touch nothing in common."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

Step = tuple[set[str], Callable[[], Awaitable[None]]]
"""What it touches, by any name, and what is to be done."""

_AT_ONCE = 16


class Turns:
    """Steps side by side, so many at once; those that touch the same thing in their order."""

    def __init__(self) -> None:
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._broken_off: Exception | None = None

    async def run(self, steps: Iterable[Step]) -> None:
        """All of them. After the first error nothing new is begun, and it is raised once what is
        under way has ended: its answers are known then."""
        last: dict[str, asyncio.Task[None]] = {}
        tasks = []
        for touched, work in steps:
            before = {last[name] for name in touched if name in last}
            task = asyncio.create_task(self._in_turn(work, before))
            last |= dict.fromkeys(touched, task)
            tasks.append(task)
        await asyncio.gather(*tasks)
        if self._broken_off is not None:
            raise self._broken_off

    async def _in_turn(
        self, work: Callable[[], Awaitable[None]], before: set[asyncio.Task[None]]
    ) -> None:
        if before:
            await asyncio.wait(before)
        async with self._limit:
            if self._broken_off is not None:
                return
            try:
                await work()
            except Exception as err:  # noqa: BLE001 - raised again once the others have ended
                self._broken_off = self._broken_off or err
