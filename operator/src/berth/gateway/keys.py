"""Who calls, and which models may they use? API keys from a mounted Secret, read again when it changes."""

import asyncio
import fnmatch
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from berth.gateway.catalog import EVERYTHING, Scope, Served
from berth.gateway.errors import Refused
from berth.gateway.inbound import Request

log = logging.getLogger(__name__)
REREAD_S = 2.0


@dataclass(frozen=True)
class Caller:
    """The holder of a key. Without keys everybody is ``anonymous`` and may use everything."""

    name: str = "anonymous"
    scope: Scope = EVERYTHING
    models: tuple[str, ...] | None = None
    per_minute: int | None = None
    concurrent: int | None = None

    @property
    def is_unlimited(self) -> bool:
        """No meter has to be kept for it."""
        return self.per_minute is None and self.concurrent is None

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
        except (OSError, ValueError, yaml.YAMLError) as err:
            # A parser's error quotes the line, and so a key.
            why = type(err).__name__ if isinstance(err, yaml.YAMLError) else err
            log.error("keys file %s is not used: %s", self._path, why)
            if self._callers is None:
                self._callers = {}
            return
        self._stamp, self._callers = stamp, callers
        log.info("%d API keys read from %s", len(callers), self._path)

    async def read_for_ever(self) -> None:
        while self._path is not None:
            await asyncio.sleep(REREAD_S)
            self.read()

    def caller(self, request: Request) -> Caller:
        """Who sent this request. Raises Refused ``invalid_api_key``."""
        if self._callers is None:
            return ANYBODY
        scheme, _, key = request.header(b"authorization").partition(" ")
        if scheme.lower() != "bearer" or not key:
            key = request.header(b"x-api-key")
        caller = self._callers.get(hashlib.sha256(_bytes_of(key)).digest())
        if caller is None:
            raise Refused("invalid_api_key", "Incorrect API key provided")
        return caller


def _bytes_of(key: str) -> bytes:
    """As the client sent them: headers are read as UTF-8, and what is not is kept by its bytes."""
    return key.strip().encode("utf-8", "surrogateescape")


def parse_keys(document: Any) -> dict[bytes, Caller]:
    """``keys: [{name, key | sha256, models, namespaces, …limits}]`` → caller by the key's SHA-256.

    Raises ValueError for what could open more than was meant: a misspelt field, a text where a list
    belongs, an empty key. It names the field and quotes nothing.
    """
    given = msgspec.convert(document or {}, _File)
    return {_digest(row): _caller(row) for row in given.keys}


_Count = Annotated[int, msgspec.Meta(ge=1)]


class _Row(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    name: str
    key: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    models: tuple[str, ...] | None = None
    namespaces: frozenset[str] | None = None
    requests_per_minute: _Count | None = None
    concurrent: _Count | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[_Row] = []


_OF_NO_KEY = hashlib.sha256(b"").digest()


def _digest(row: _Row) -> bytes:
    if (row.key is None) == (row.sha256 is None):
        raise ValueError("each key has either `key` or `sha256`")
    text = row.key.encode() if row.key is not None else b""
    digest = bytes.fromhex(row.sha256) if row.sha256 else hashlib.sha256(text).digest()
    if digest == _OF_NO_KEY:
        raise ValueError("a key is empty: requests without a key would have it")
    return digest


def _caller(row: _Row) -> Caller:
    scope = Scope(row.namespaces) if row.namespaces is not None else EVERYTHING
    return Caller(row.name, scope, row.models, row.requests_per_minute, row.concurrent)
