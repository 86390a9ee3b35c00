"""Which situations is each client put into, and what did it make of them?

A real gateway over a catalogue that is set by hand; the client is a program of its own.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berth.reasons import State
from clients import messages
from fakes.engine import Behaviour, FakeEngine
from gateway.world import World, until, world

PROGRAMS = Path(__file__).with_name("programs")
TEXT = "word0 word1 word2 "
SENTENCES = ("m is held", "m cannot be loaded: no such image", "the runner went away")
"""Of the gateway, in the situations below."""
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Client:
    """One client: its program, and the package that it needs."""

    name: str
    program: str
    package: str
    speaks: str = "chat"


CLIENTS = (
    Client("curl", "ask_curl.py", "curl"),
    Client("OpenAI Python SDK", "ask_openai.py", "openai"),
    Client("OpenAI Node SDK", "ask_openai.mjs", "openai"),
    Client("Anthropic Python SDK", "ask_anthropic.py", "anthropic", "messages"),
    Client("LangChain (langchain-openai)", "ask_langchain.py", "langchain_openai"),
    Client("LiteLLM", "ask_litellm.py", "litellm"),
    Client("Open WebUI's calls", "ask_openwebui.py", "aiohttp"),
)


@dataclass(frozen=True)
class Outcome:
    """What the client's user sees, and how often the gateway was asked for it."""

    text: str
    error: dict[str, Any] | None
    asked: int

    @property
    def cell(self) -> str:
        """For the table."""
        again = f", asked {self.asked} times" if self.asked > 1 else ""
        if self.error is None:
            return ("answers" if self.text == TEXT else "**a short answer**") + again
        kind = self.error["class"] if " " in self.error["class"] else f"`{self.error['class']}`"
        return f"{kind}, {self._says()}{again}"

    def _says(self) -> str:
        """The error's code; its sentence where the client drops the code; else that it has none."""
        assert self.error is not None
        if self.error["code"]:
            return f"`{self.error['code']}`"
        return "the sentence" if any(s in self.error["text"] for s in SENTENCES) else "no word"


@contextlib.asynccontextmanager
async def _engine(speaks: str, crash_after: int | None = None) -> AsyncIterator[int]:
    if speaks == "messages":
        async with messages.serving(crash_after) as port:
            yield port
    else:
        behaviour = Behaviour(tokens=3, token_s=0.02, slots=4, crash_after=crash_after)
        async with FakeEngine(behaviour).serving() as engine:
            yield engine.port


Play = Callable[[World, Client], Awaitable[None]]


async def cold(w: World, client: Client) -> None:
    """Nothing is loaded; a runner comes up once the request waits and got its keepalives."""
    await until(lambda: w.waiting, "the request waits", DEADLINE_S)
    await asyncio.sleep(0.5)
    async with _engine(client.speaks) as port:
        w.up(port)
        await asyncio.sleep(DEADLINE_S)


async def held(w: World, client: Client) -> None:
    """A Hold keeps the model's nodes."""
    w.change(state=State.HELD, load_seconds=(1,))


async def failing(w: World, client: Client) -> None:
    """The load fails while the request waits."""
    await until(lambda: w.waiting, "the request waits", DEADLINE_S)
    await asyncio.sleep(0.3)
    w.change(state=State.FAILED, message="no such image")


async def dying(w: World, client: Client) -> None:
    """The runner dies in the middle of the answer."""
    async with _engine(client.speaks, 2) as port:
        w.up(port)
        await asyncio.sleep(DEADLINE_S)


async def dying_early(w: World, client: Client) -> None:
    """The runner dies before the first byte of the answer; another comes."""
    async with _engine(client.speaks, 0) as bad, _engine(client.speaks) as good:
        w.up(bad, runner="bad")
        await until(lambda: w.waiting, "it was put back", DEADLINE_S)
        w.down(runner="bad")
        await asyncio.sleep(0.3)
        w.up(good, runner="good")
        await asyncio.sleep(DEADLINE_S)


SITUATIONS: tuple[tuple[str, Play, str], ...] = (
    ("cold, streamed", cold, "stream"),
    ("cold, whole", cold, "whole"),
    ("held", held, "whole"),
    ("load fails, streamed", failing, "stream"),
    ("load fails, whole", failing, "whole"),
    ("dies in the stream", dying, "stream"),
    ("dies before the answer", dying_early, "whole"),
)


@dataclass(frozen=True)
class Installed:
    """Where the packages are that the project itself does not depend on."""

    python: Path | None
    node: Path | None

    def command(self, client: Client) -> list[str] | None:
        """How its program is started; None when its package is not there."""
        program = str(PROGRAMS / client.program)
        if client.package == "curl":
            return [sys.executable, program] if shutil.which("curl") else None
        if client.package == "aiohttp":
            # The project's own: what matters is how it is called.
            return [sys.executable, program]
        if program.endswith(".mjs"):
            node = shutil.which("node")
            is_there = self.node is not None and (self.node / client.package).is_dir()
            return [node, program, str(self.node)] if node and is_there else None
        is_there = self.python is not None and (self.python / client.package).is_dir()
        return [sys.executable, program] if is_there else None

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.python or "")}


async def outcome(client: Client, play: Play, mode: str, installed: Installed) -> Outcome:
    """One client in one situation."""
    command = installed.command(client)
    assert command is not None, f"{client.name} is not installed"
    async with world(KEEPALIVE="200ms") as w:
        w.model()
        if play is held:
            await play(w, client)
        script = asyncio.ensure_future(play(w, client))
        program = await asyncio.create_subprocess_exec(
            *command,
            f"http://127.0.0.1:{w.port}",
            "m",
            mode,
            env=installed.environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                out, complaint = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
            script.cancel()
            await asyncio.gather(script, return_exceptions=True)
        assert out, complaint.decode()[-2000:]
        said = json.loads(out.splitlines()[-1])
        w.gateway.ledger.flush()
        asked = [line for line in w.lines if line["model"] == "default/m"]
        return Outcome(said["text"], said["error"], len(asked))
