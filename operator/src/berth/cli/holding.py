"""How does a hold go, from naming who is disturbed to everything being loaded again?

Whatever happens in between, it is released: a signal, a command that is killed, an API server that is
away for a moment. Only a kill of this very program leaves it, and then its silence ends it.
"""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import Any

from berth.api.hold import Hold
from berth.api.model import Model
from berth.cli.cluster import follow, get
from berth.cli.disturbed import Say, Wanted, name_disturbed, say_error
from berth.cli.errors import CommandError
from berth.cli.models import state_of
from berth.kube.client import ApiError, ApiUnreachableError, Kube
from berth.kube.refs import ref_of
from berth.reasons import ConditionType, State

HOLDS = ref_of(Hold)
MANAGER = "berth-hold"
RENEW_S = 60.0
"""A fortieth of the silence that ends a hold: many beats may be lost."""
_LOOK_S = 2.0
_RELEASE_TRIES = 60
_RETURN_WITHIN_S = 1800.0
NOT_FOUND, NOT_STARTED = 127, 126


class Signals:
    """What the terminal, or who started the command, wishes to end. The first is passed on, the second kills."""

    def __init__(self) -> None:
        self.heard: asyncio.Event = asyncio.Event()
        self.number = 0
        self.child: asyncio.subprocess.Process | None = None

    def listen(self) -> None:
        """Only a program's main thread can."""
        loop = asyncio.get_running_loop()
        with suppress(RuntimeError, ValueError, NotImplementedError):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self.hear, number)

    def hear(self, number: int) -> None:
        """One more signal."""
        again, self.number = self.heard.is_set(), number
        self.heard.set()
        if self.child is None:
            return
        with suppress(ProcessLookupError):
            if again:
                self.child.kill()
            elif number != signal.SIGINT or not sys.stdin.isatty():
                # A terminal gives its interrupt to the command by itself.
                self.child.send_signal(number)

    def forget(self) -> None:
        """What was heard is done; the next signal is a first one."""
        self.heard.clear()

    @property
    def code(self) -> int:
        """The exit code of a program that this signal ended."""
        return 128 + self.number


async def carry_out(
    kube: Kube, wanted: Wanted, say: Say = say_error, signals: Signals | None = None
) -> int:
    """The whole of a hold; gives the exit code of the command.

    1. Who is disturbed is named; with ``when_idle`` their end is waited for.
    2. The Hold is made, and waited for until its nodes are empty.
    3. The command runs, and the Hold is renewed meanwhile. A Hold that ended under it ends it.
    4. The Hold is released, however 2 and 3 went.
    5. What was unloaded for it is waited for, until it is loaded again; then the Hold is deleted.
    """
    await name_disturbed(kube, wanted, say)
    signals = signals or Signals()
    signals.listen()
    held = _Held(kube, wanted, say)
    try:
        await held.begin()
        if not await _unless(signals, held.until_held()):
            return signals.code
        if not wanted.command:
            say(
                f"hold {wanted.name} lasts {wanted.budget}; end it with: berth hold --release {wanted.name}"
            )
            held.stays = True
            return 0
        code = await held.during(wanted.command, signals)
    finally:
        if not held.stays:
            await held.release()
    signals.forget()
    if not await _unless(signals, held.until_returned()):
        say("not waited for: the hold is over, and what was loaded is being loaded again")
    return code


async def _unless(signals: Signals, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work; False when a signal came first."""
    doing = asyncio.ensure_future(work)
    hearing = asyncio.ensure_future(signals.heard.wait())
    await asyncio.wait({doing, hearing}, return_when=asyncio.FIRST_COMPLETED)
    hearing.cancel()
    if not doing.done():
        doing.cancel()
        with suppress(asyncio.CancelledError):
            await doing
        return False
    await doing
    return True


class _Held:
    """One Hold of ours on the API server."""

    def __init__(self, kube: Kube, wanted: Wanted, say: Say) -> None:
        self._kube, self._wanted, self._say = kube, wanted, say
        self._name = wanted.name
        self._uid = ""
        self.stays = False
        """It outlives this program: nobody watches over it, and its budget ends it."""

    async def begin(self) -> None:
        """Make the Hold."""
        body = {
            "apiVersion": HOLDS.api_version,
            "kind": HOLDS.kind,
            "metadata": {"name": self._name},
            "spec": self._wanted.spec(released=False),
        }
        self._uid = (await self._kube.create(HOLDS, body))["metadata"]["uid"]

    async def until_held(self) -> None:
        """Returns once the nodes are empty. Raises CommandError when the hold ended before."""
        last = ""
        async with aclosing(follow(self._kube, HOLDS, self._name)) as changes:
            async for obj in changes:
                hold = Hold.model_validate(obj)
                self._refuse_ended(hold)
                if _is(hold, ConditionType.HELD):
                    self._say(f"hold {self._name} has {', '.join(hold.status.nodes)}")
                    return
                now = waits(hold)
                if now and now != last:
                    self._say(f"hold {self._name}: {now}")
                last = now
        raise self._ended("it was deleted")

    async def during(self, command: tuple[str, ...], signals: Signals) -> int:
        """Run the command under the hold; gives its exit code, as a shell counts it."""
        try:
            child = await asyncio.create_subprocess_exec(*command)
        except FileNotFoundError:
            self._say(f"{command[0]}: no such command")
            return NOT_FOUND
        except OSError as err:
            self._say(f"{command[0]}: {err.strerror}")
            return NOT_STARTED
        signals.child = child
        if signals.heard.is_set():
            # It came while the command was being started, and nobody has been told yet.
            child.send_signal(signals.number)
        watching = [asyncio.ensure_future(w) for w in (self._renew(), self._end_with_hold(child))]
        try:
            code = await child.wait()
        finally:
            signals.child = None
            for task in watching:
                task.cancel()
        return code if code >= 0 else 128 - code

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with suppress(ApiError, ApiUnreachableError):
                await self._apply(released=False)

    async def _end_with_hold(self, child: asyncio.subprocess.Process) -> None:
        """A command must not go on where others may load again."""
        why = await self._until_ended()
        self._say(f"hold {self._name} ended ({why}): its command is told to end")
        with suppress(ProcessLookupError):
            child.terminate()

    async def _until_ended(self) -> str:
        while True:
            with suppress(ApiError, ApiUnreachableError):
                async with aclosing(follow(self._kube, HOLDS, self._name)) as changes:
                    async for obj in changes:
                        if why := is_ended(Hold.model_validate(obj)):
                            return why
                    return "it was deleted"
            await asyncio.sleep(_LOOK_S)

    async def release(self) -> None:
        """Give the nodes back. An API server that is away is asked again for two minutes."""
        for _ in range(_RELEASE_TRIES):
            if await self._released():
                return
            await asyncio.sleep(_LOOK_S)
        self._say(f"hold {self._name} could not be released; it ends by itself after its silence")

    async def _released(self) -> bool:
        try:
            await get(self._kube, Hold, self._name)
            await self._apply(released=True)
        except ApiUnreachableError:
            return False
        except ApiError as err:
            if not err.not_found:
                self._say(f"hold {self._name} is not released yet: {err.message}")
            return err.not_found
        return True

    async def until_returned(self) -> None:
        """Returns once what was unloaded for it is loaded again, or never will be; says which."""
        away: set[str] = set()
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(_RETURN_WITHIN_S),
                aclosing(follow(self._kube, HOLDS, self._name)) as changes,
            ):
                async for obj in changes:
                    hold = Hold.model_validate(obj)
                    away |= set(hold.status.models)
                    if is_ended(hold) and _is_current(hold) and not hold.status.models:
                        break
        for key in sorted(away):
            self._say(await self._told(key))
        with suppress(ApiError, ApiUnreachableError):
            await self._kube.delete(HOLDS, self._name)

    async def _told(self, key: str) -> str:
        namespace, _, name = key.partition("/")
        try:
            model = await get(self._kube, Model, name, namespace)
        except (ApiError, ApiUnreachableError) as err:
            return f"model {key}: not seen again: {err}"
        if state_of(model) == State.UP:
            return f"model {key} is up again"
        return f"model {key} is not up again: {state_of(model)}; see berth explain {name} -n {namespace}"

    async def _apply(self, *, released: bool) -> None:
        # By its uid: one that somebody deleted is not made anew.
        body = {"metadata": {"uid": self._uid}, "spec": self._wanted.spec(released=released)}
        await self._kube.apply(HOLDS, self._name, body, manager=MANAGER)

    def _refuse_ended(self, hold: Hold) -> None:
        if why := is_ended(hold):
            raise self._ended(why)

    def _ended(self, why: str) -> CommandError:
        return CommandError(
            f"holding {self._wanted.where}",
            wrong=f"the hold {self._name} ended before its nodes were empty: {why}",
            todo="ask again, with a larger --budget where that was spent",
        )


async def release_hold(kube: Kube, hold: Hold) -> None:
    """End a hold of anybody's: who watches over it sees that, and ends its command."""
    body = {"spec": {"released": True}}
    await kube.patch_merge(HOLDS, hold.metadata.name, body)


def is_ended(hold: Hold) -> str:
    """Why the hold is over, in a few words; empty while it is not."""
    for kind, text in (
        (ConditionType.EXPIRED, "it expired"),
        (ConditionType.RELEASED, "it was released"),
    ):
        found = next((c for c in hold.status.conditions if c.type == kind), None)
        if found is not None and found.status == "True":
            return found.message or text
    return "it was released" if hold.spec.released else ""


def waits(hold: Hold) -> str:
    """What a hold waits for; empty: it is held, or nobody has looked at it yet."""
    found = next((c for c in hold.status.conditions if c.type == ConditionType.HELD), None)
    return found.message if found is not None and found.status != "True" else ""


def _is(hold: Hold, kind: ConditionType) -> bool:
    return any(c.type == kind and c.status == "True" for c in hold.status.conditions)


def _is_current(hold: Hold) -> bool:
    """The status speaks of the release: what it says of Models was seen after it."""
    return _is(hold, ConditionType.RELEASED) or _is(hold, ConditionType.EXPIRED)
