"""Who calls, and which models may they use? API keys from a mounted Secret, read again when it changes."""

import asyncio
import fnmatch
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from multidict import CIMultiDictProxy

from berth.gateway.catalog import EVERYTHING, Scope, Served
from berth.gateway.errors import Refused

log = logging.getLogger(__name__)
REREAD_S = 2.0


@dataclass(frozen=True)
class Caller:
    """The holder of a key. Without keys everybody is ``anonymous`` and may use everything."""

    name: str = "anonymous"
    scope: Scope = EVERYTHING
    models: tuple[str, ...] | None = None

    def may_use(self, served: Served) -> bool:
        """By id, alias, or ``namespace::id``, each as a shell pattern."""
        if self.models is None:
            return True
        names = (served.id, *served.aliases, f"{served.namespace}::{served.id}")
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.models for name in names)


ANYBODY = Caller()


class Keys:
    """The keys in effect. A file that does not parse changes nothing and is logged."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._callers: dict[bytes, Caller] | None = None
        self._stamp: object = None
        self.read()

    def read(self) -> None:
        """Read the file if it changed. Once read, its absence does not open the door again."""
        if self._path is None:
            return
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            callers = parse_keys(yaml.safe_load(self._path.read_text()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as err:
            # The error's text could quote a key.
            log.error("keys file %s is not used: %s", self._path, type(err).__name__)
            if self._callers is None:
                self._callers = {}
            return
        self._stamp, self._callers = stamp, callers
        log.info("%d API keys read from %s", len(callers), self._path)

    async def read_for_ever(self) -> None:
        while self._path is not None:
            await asyncio.sleep(REREAD_S)
            self.read()

    def caller(self, headers: CIMultiDictProxy[str]) -> Caller:
        """Who sent these headers. Raises Refused ``invalid_api_key``."""
        if self._callers is None:
            return ANYBODY
        scheme, _, key = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            key = headers.get("X-Api-Key", "")
        caller = self._callers.get(hashlib.sha256(key.strip().encode()).digest())
        if caller is None:
            raise Refused("invalid_api_key", "Incorrect API key provided")
        return caller


def parse_keys(document: Any) -> dict[bytes, Caller]:
    """``keys: [{name, key | sha256, models, namespaces}]`` → caller by the key's SHA-256."""
    callers: dict[bytes, Caller] = {}
    for row in (document or {}).get("keys") or []:
        if "sha256" in row:
            digest = bytes.fromhex(row["sha256"])
        else:
            digest = hashlib.sha256(str(row["key"]).encode()).digest()
        namespaces = row.get("namespaces")
        callers[digest] = Caller(
            name=str(row["name"]),
            scope=Scope(frozenset(namespaces)) if namespaces is not None else EVERYTHING,
            models=tuple(row["models"]) if row.get("models") is not None else None,
        )
    return callers
