"""How do the engine's conversations outlive it? llama.cpp's slots, saved to and read from a folder.

The folder belongs to this model with these settings and this image alone (whoever mounts it sees to
that); that the engine inside is the same build is checked here, by what it says of itself. The API:
llama.cpp's tools/server/README.md, ``/props``, ``/slots`` and ``/slots/{id}?action=…``.
"""

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = "sessions.json"
_QUICK_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """What was saved or restored: slots, tokens in them, bytes on the disk; and what went wrong."""

    slots: int = 0
    tokens: int = 0
    size: int = 0
    problem: str = ""

    def __str__(self) -> str:
        words = f"{self.slots} sessions, {self.tokens} tokens, {self.size} bytes"
        return f"{words}; {self.problem}" if self.problem else words


class EngineSilentError(Exception):
    """The engine did not answer as it should; the text says to what."""


class Sessions:
    """The saved slots of one engine. ``limit`` is the most that they may take, in bytes."""

    def __init__(self, folder: str, host: str, port: int, *, limit: int, time_s: float) -> None:
        self._folder, self._host, self._port = Path(folder), host, port
        self._limit, self._time_s = limit, time_s

    def save(self, clock: Callable[[], float] = time.monotonic) -> Outcome:
        """Save every slot that holds something, until time or room is up. Never raises.

        The index is written last, by rename: what a kill leaves behind has no index, or the old one
        with whole files.
        """
        end = clock() + self._time_s
        found: dict[str, dict[str, int]] = {}
        try:
            build, slots = self._build(), self._slots()
            for slot in slots:
                saved = self._save(slot, end - clock())
                if saved is None:
                    continue
                if _total(found) + saved["size"] > self._limit:
                    self._path(slot).unlink(missing_ok=True)
                    return self._index(build, found, f"no room for slot {slot}")
                found[str(slot)] = saved
        except (EngineSilentError, OSError) as err:
            return self._index("", found, str(err))
        return self._index(build, found, "")

    def restore(self, clock: Callable[[], float] = time.monotonic) -> Outcome:
        """Give the engine what was saved by one of its own build; anything else is removed.

        Never raises: an engine without its sessions reads its prompts anew, and that is all.
        """
        end = clock() + self._time_s
        done = Outcome()
        try:
            kept = self._kept()
            slots = self._slots() if kept else []
            for slot in slots:
                if str(slot) not in kept:
                    continue
                tokens = self._act(slot, "restore", end - clock()).get("n_restored", 0)
                done = Outcome(
                    done.slots + 1, done.tokens + tokens, done.size + kept[str(slot)]["size"]
                )
        except (EngineSilentError, OSError) as err:
            return Outcome(done.slots, done.tokens, done.size, str(err))
        return done

    # -- one slot ------------------------------------------------------------------------------

    def _save(self, slot: int, left_s: float) -> dict[str, int] | None:
        """Tokens and bytes; None for a slot that holds nothing."""
        answer = self._act(slot, "save", left_s)
        fresh, tokens = self._folder / _fresh(slot), int(answer.get("n_saved", 0))
        if not tokens:
            fresh.unlink(missing_ok=True)
            return None
        fresh.replace(self._path(slot))
        return {"tokens": tokens, "size": self._path(slot).stat().st_size}

    def _act(self, slot: int, action: str, left_s: float) -> dict[str, Any]:
        name = _fresh(slot) if action == "save" else _name(slot)
        body = json.dumps({"filename": name})
        told = self._ask("POST", f"/slots/{slot}?action={action}", left_s, body)
        if not isinstance(told, dict):
            raise EngineSilentError(f"slot {slot}: no answer to {action}")
        return told

    def _path(self, slot: int) -> Path:
        return self._folder / _name(slot)

    # -- the folder ------------------------------------------------------------------------------

    def _kept(self) -> dict[str, dict[str, int]]:
        """What the index says, when it is of this build; every other file is removed."""
        found: dict[str, dict[str, int]] = {}
        index = self._folder / INDEX
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            told = json.loads(index.read_text())
            if told["build"] == self._build():
                found = {str(int(s)): {"size": int(x["size"])} for s, x in told["slots"].items()}
        names = {INDEX, *(_name(int(slot)) for slot in found)} if found else set()
        for path in self._files():
            if path.name not in names:
                path.unlink(missing_ok=True)
        return found

    def _files(self) -> Iterator[Path]:
        return (path for path in self._folder.iterdir() if path.is_file())

    def _index(self, build: str, found: dict[str, dict[str, int]], problem: str) -> Outcome:
        """Write what there is now. Without a build nobody could tell whose it is."""
        path = self._folder / INDEX
        try:
            if build and found:
                fresh = path.with_suffix(".new")
                fresh.write_text(json.dumps({"build": build, "slots": found}))
                fresh.replace(path)
            else:
                path.unlink(missing_ok=True)
                found = {}
            kept = {INDEX, *(_name(int(slot)) for slot in found)}
            for other in self._files():
                if other.name not in kept:
                    other.unlink(missing_ok=True)
        except OSError as err:
            return Outcome(problem=f"{self._folder}: {err.strerror}")
        tokens = sum(slot["tokens"] for slot in found.values())
        return Outcome(len(found), tokens, _total(found), problem)

    # -- the engine --------------------------------------------------------------------------------

    def _build(self) -> str:
        told = self._ask("GET", "/props", _QUICK_S)
        if not isinstance(told, dict) or not told.get("build_info"):
            raise EngineSilentError("/props names no build")
        return str(told["build_info"])

    def _slots(self) -> list[int]:
        told = self._ask("GET", "/slots", _QUICK_S)
        try:
            return [int(slot["id"]) for slot in told]
        except (TypeError, KeyError, ValueError) as err:
            raise EngineSilentError("/slots is no list of slots") from err

    def _ask(self, method: str, path: str, left_s: float, body: str | None = None) -> Any:
        if left_s <= 0:
            raise EngineSilentError(f"no time left for {path}")
        connection = http.client.HTTPConnection(self._host, self._port, timeout=left_s)
        headers = {"Connection": "close", "Content-Type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != http.client.OK:
                raise EngineSilentError(f"{path} answered {answer.status}")
            return json.loads(text)
        except (OSError, ValueError, http.client.HTTPException) as err:
            raise EngineSilentError(f"{path}: {err or type(err).__name__}") from err
        finally:
            connection.close()


def _name(slot: int) -> str:
    return f"slot-{slot}.bin"


def _fresh(slot: int) -> str:
    return f"slot-{slot}.new"


def _total(found: dict[str, dict[str, int]]) -> int:
    return sum(slot["size"] for slot in found.values())
