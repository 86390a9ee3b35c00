"""Does a hold end well, however its command ends? The controller is played by hand."""

import asyncio
import contextlib
import signal
import sys
from typing import Any

import pytest

from berth.api.demand import Demand
from berth.api.hold import Hold
from berth.api.runner import Runner
from berth.cli.disturbed import Wanted
from berth.cli.errors import CommandError
from berth.cli.holding import NOT_FOUND, Signals, carry_out
from berth.kube.client import ApiError
from berth.kube.refs import NODES, ref_of
from fakes.kube import FakeKube, Object

HOLDS, RUNNERS, DEMANDS = ref_of(Hold), ref_of(Runner), ref_of(Demand)
PYTHON = sys.executable
WANTED = Wanted(name="h", nodes=("gpu-1",), reason="bench", holder="me@here")


def _condition(kind: str, status: str, message: str = "") -> Object:
    at = "2026-01-01T00:00:00Z"
    return {
        "type": kind,
        "status": status,
        "reason": kind,
        "message": message,
        "lastTransitionTime": at,
    }


class Cluster:
    """An API server with one node, what `berth hold` said, and a controller that answers holds."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.said: list[str] = []
        self.signals = Signals()
        self.kube.put(NODES, {"metadata": {"name": "gpu-1", "labels": {"gpu": "yes"}}})

    def says(self, *conditions: Object, **status: Any) -> None:
        def edit(obj: Object) -> None:
            before = (obj.get("status") or {}).get("nodes", ["gpu-1"])
            obj["status"] = {"conditions": list(conditions), "nodes": before} | status

        self.kube.change(HOLDS, "h", "", edit)

    def spec(self) -> Object:
        return dict(self.kube.objects.get(("holds", "", "h"), {}).get("spec") or {})

    async def until(self, check: Any, what: str) -> None:
        async with asyncio.timeout(20):
            while not check():
                await asyncio.sleep(0.01)

    async def grant(self) -> None:
        await self.until(self.spec, "the hold")
        self.says(_condition("Held", "True"))

    async def take_back(self) -> None:
        await self.until(lambda: self.spec().get("released"), "the release")
        self.says(_condition("Held", "False"), _condition("Released", "True"), models=["ns/m"])
        self.says(_condition("Held", "False"), _condition("Released", "True"), models=[])

    async def hold(self, wanted: Wanted) -> int:
        """The whole of it, with a controller that grants and takes back."""
        played = asyncio.gather(self.grant(), self.take_back())
        try:
            return await self.carry_out(wanted)
        finally:
            played.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await played

    async def carry_out(self, wanted: Wanted) -> int:
        async with asyncio.timeout(30):
            return await carry_out(self.kube, wanted, self.said.append, self.signals)  # type: ignore[arg-type]

    def verbs(self) -> list[str]:
        return [write.verb for write in self.kube.writes if write.plural == "holds"]


def running(code: str) -> Wanted:
    return Wanted(name="h", nodes=("gpu-1",), command=(PYTHON, "-c", code))


@pytest.mark.parametrize(
    ("code", "want"),
    [
        pytest.param("", 0, id="it succeeds"),
        pytest.param("raise SystemExit(7)", 7, id="it fails"),
        pytest.param("import os; os.kill(os.getpid(), 9)", 137, id="it is killed"),
    ],
)
async def test_the_exit_code_is_the_commands_and_the_hold_is_gone(code: str, want: int) -> None:
    cluster = Cluster()
    assert await cluster.hold(running(code)) == want
    assert cluster.verbs() == ["create", "apply", "delete"]
    assert cluster.kube.writes[1].body["spec"]["released"] is True


async def test_a_command_that_is_not_there_gives_the_nodes_back() -> None:
    cluster = Cluster()
    assert (
        await cluster.hold(Wanted(name="h", nodes=("gpu-1",), command=("/no/such",))) == NOT_FOUND
    )
    assert cluster.verbs() == ["create", "apply", "delete"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_is_passed_on_and_the_hold_released(number: int) -> None:
    cluster = Cluster()
    done = asyncio.create_task(cluster.hold(running("import time; time.sleep(600)")))
    await cluster.until(lambda: cluster.signals.child, "the command")
    cluster.signals.hear(number)
    assert await done == 128 + number
    assert cluster.verbs() == ["create", "apply", "delete"]


async def test_a_signal_that_comes_while_the_command_starts_is_passed_on_too() -> None:
    cluster = Cluster()

    def say(text: str) -> None:
        if "has gpu-1" in text:
            cluster.signals.hear(signal.SIGTERM)

    played = asyncio.gather(cluster.grant(), cluster.take_back())
    wanted = running("import time; time.sleep(600)")
    async with asyncio.timeout(30):
        assert await carry_out(cluster.kube, wanted, say, cluster.signals) == 143  # type: ignore[arg-type]
    await played


DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


async def test_a_second_signal_kills_a_command_that_is_deaf() -> None:
    cluster = Cluster()
    done = asyncio.create_task(cluster.hold(running(DEAF)))
    await cluster.until(lambda: cluster.signals.child, "the command")
    cluster.signals.hear(signal.SIGTERM)
    cluster.signals.hear(signal.SIGTERM)
    assert await done in (128 + signal.SIGKILL, 128 + signal.SIGTERM)


async def test_a_signal_while_the_nodes_drain_releases_and_runs_nothing() -> None:
    cluster = Cluster()
    done = asyncio.create_task(cluster.carry_out(running("raise SystemExit(7)")))
    await cluster.until(cluster.spec, "the hold")
    cluster.signals.hear(signal.SIGINT)
    assert await done == 128 + signal.SIGINT
    assert cluster.verbs() == ["create", "apply"]


async def test_a_hold_that_ends_under_its_command_ends_the_command() -> None:
    cluster = Cluster()
    done = asyncio.create_task(cluster.carry_out(running("import time; time.sleep(600)")))
    await cluster.grant()
    await cluster.until(lambda: cluster.signals.child, "the command")
    cluster.says(_condition("Held", "False"), _condition("Expired", "True", "its budget is spent"))
    assert await done == 128 + signal.SIGTERM
    assert "hold h ended (its budget is spent): its command is told to end" in cluster.said


async def test_one_that_waits_says_for_what() -> None:
    cluster = Cluster()
    done = asyncio.create_task(cluster.hold(running("")))
    await cluster.until(cluster.spec, "the hold")
    cluster.says(_condition("Held", "False", "it waits for the hold x, which came first"), nodes=[])
    await cluster.grant()
    assert await done == 0


async def test_a_hold_that_expired_in_the_queue_is_an_error() -> None:
    cluster = Cluster()
    done = asyncio.create_task(cluster.carry_out(running("")))
    await cluster.until(cluster.spec, "the hold")
    cluster.says(_condition("Expired", "True", "its holder was silent for 2400 s"))
    with pytest.raises(CommandError, match="ended before its nodes were empty: its holder was sil"):
        await done


async def test_a_release_is_tried_again_while_the_api_server_is_away() -> None:
    cluster = Cluster()
    done = asyncio.create_task(cluster.hold(running("import time; time.sleep(600)")))
    await cluster.until(lambda: cluster.signals.child, "the command")
    cluster.kube.away = True
    cluster.signals.hear(signal.SIGTERM)
    await cluster.until(lambda: cluster.signals.child is None, "the end of the command")
    cluster.kube.away = False
    cluster.kube.wake()
    assert await done == 143


async def test_without_a_command_it_stays_and_nobody_renews_it() -> None:
    cluster = Cluster()
    assert await cluster.hold(WANTED) == 0
    assert cluster.verbs() == ["create"]
    assert cluster.spec() == {
        "nodes": ["gpu-1"],
        "reason": "bench",
        "budget": "30m",
        "holder": "me@here",
    }


def _loaded(cluster: Cluster, busy: int) -> None:
    spec = {"modelRef": {"name": "m", "uid": "u"}, "nodeName": "gpu-1"}
    status = {"agent": {"health": {"busy": busy}}}
    meta = {"name": "m-0", "namespace": "ns"}
    cluster.kube.put(RUNNERS, {"metadata": meta, "spec": spec, "status": status})


async def test_who_is_disturbed_is_named_before_anything_is_taken() -> None:
    cluster = Cluster()
    _loaded(cluster, busy=2)
    await cluster.hold(WANTED)
    assert cluster.said[0] == "model ns/m is loaded on gpu-1: 2 requests in hand or waiting"


async def test_when_idle_waits_for_the_last_answer() -> None:
    cluster = Cluster()
    _loaded(cluster, busy=1)
    when_idle = Wanted(name="h", nodes=("gpu-1",), when_idle=True)
    done = asyncio.create_task(cluster.hold(when_idle))
    await cluster.until(lambda: cluster.said, "the name of who is disturbed")
    assert cluster.verbs() == []
    _loaded(cluster, busy=0)
    assert await done == 0


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(Wanted(name="h", nodes=("gpu-9",)), id="no such node"),
        pytest.param(Wanted(name="h", selector={"gpu": "no"}), id="no node has the label"),
    ],
)
async def test_a_node_that_is_not_there_is_named(wanted: Wanted) -> None:
    cluster = Cluster()
    with pytest.raises(CommandError, match="there is no such node"):
        await cluster.carry_out(wanted)
    assert cluster.verbs() == []


async def test_who_may_not_hold_is_told_and_nothing_is_left() -> None:
    cluster = Cluster()
    cluster.kube.refuses = lambda _: ApiError(403, "Forbidden", "holds is forbidden")
    with pytest.raises(ApiError, match="forbidden"):
        await cluster.carry_out(running(""))
    assert ("holds", "", "h") not in cluster.kube.objects


def test_what_stands_behind_two_dashes_is_the_command(berth: Any) -> None:
    result = berth("hold", "--", "ls", "--list")
    assert (result.exit_code, "no node is named" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        pytest.param(("--list", "gpu-1"), "exclude each other", id="two things at once"),
        pytest.param(("gpu-1", "--budget", "soon"), "soon", id="a budget that is none"),
        pytest.param(("-l", "gpu"), "is not KEY=VALUE", id="a label without a value"),
    ],
)
def test_a_wrong_word_is_told(berth: Any, words: tuple[str, ...], wrong: str) -> None:
    result = berth("hold", *words)
    assert (result.exit_code, wrong in result.output) == (1, True)
