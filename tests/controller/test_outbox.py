"""Which write goes out when? One at a time for each object, the newest word, the urgent first."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from berth.controller.outbox import Outbox, Rank
from berth.kube.client import ApiUnreachableError


class Desk:
    """Notes what was written; each write waits until it is let go."""

    def __init__(self) -> None:
        self.rung = 0
        self.outbox = Outbox(self.ring, pause_s=0)
        self.written: list[str] = []
        self.gate = asyncio.Event()

    def ring(self) -> None:
        self.rung += 1

    def job(self, said: str) -> Callable[[], Awaitable[None]]:
        async def write() -> None:
            await self.gate.wait()
            self.written.append(said)

        return write

    def post(self, key: str, said: str, rank: Rank = Rank.WORDS) -> None:
        self.outbox.post(key, said, self.job(said), rank=rank)

    async def let_go(self) -> list[str]:
        self.gate.set()
        await self.outbox.settled()
        return self.written


async def test_of_what_waits_for_one_object_the_newest_is_written() -> None:
    desk = Desk()
    for said in ("a1", "a2", "a3"):
        desk.post("a", said)
    assert await desk.let_go() == ["a1", "a3"]


async def test_what_is_being_written_is_not_written_again() -> None:
    desk = Desk()
    desk.post("a", "a1")
    desk.post("a", "a2")
    desk.post("a", "a1")
    assert await desk.let_go() == ["a1"]


async def test_what_is_right_again_does_not_go_out() -> None:
    desk = Desk()
    desk.post("a", "a1")
    desk.post("a", "a2")
    desk.outbox.drop("a")
    assert await desk.let_go() == ["a1"]


async def test_routes_go_before_words_and_alone_while_placements_are_written() -> None:
    desk = Desk()
    with desk.outbox.held():
        desk.post("word", "word")
        desk.post("route", "route", Rank.ROUTES)
        assert await desk.let_go() == ["route"]
    assert await desk.let_go() == ["route", "word"]


async def test_a_write_that_fails_has_the_next_pass_look_again() -> None:
    desk = Desk()

    async def fail() -> None:
        raise ApiUnreachableError("away")

    desk.outbox.post("a", "a1", fail)
    assert "a" in desk.outbox
    await desk.outbox.settled()
    assert (desk.rung, "a" in desk.outbox) == (1, False)


async def test_a_bug_in_one_write_does_not_keep_the_others() -> None:
    desk = Desk()

    async def bug() -> None:
        raise ZeroDivisionError

    desk.outbox.post("a", "a1", bug)
    desk.post("b", "b1")
    assert await desk.let_go() == ["b1"]


@pytest.mark.parametrize("count", [1, 8, 50])
async def test_everything_goes_out_however_much_it_is(count: int) -> None:
    desk = Desk()
    for number in range(count):
        desk.post(f"k{number}", f"w{number}")
    assert await desk.let_go() == [f"w{number}" for number in range(count)]
