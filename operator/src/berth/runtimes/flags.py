"""How is a setting written as an engine's flag, and read back from what somebody typed?

Flags match whole: ``--port`` is not ``--port-range``. Words are an argument list; no shell sees them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting's names; the first is the one that is written.

    ``switch`` takes no value and may have names that turn it ``off``; ``json`` is written compactly;
    ``list`` takes every word up to the next flag.
    """

    names: tuple[str, ...]
    kind: Literal["value", "switch", "json", "list"] = "value"
    off: tuple[str, ...] = ()

    @property
    def every(self) -> tuple[str, ...]:
        """All names, those that turn it off too."""
        return (*self.names, *self.off)


def flag(*names: str, kind: Literal["value", "switch", "json", "list"] = "value") -> Flag:
    """A flag by its names."""
    return Flag(names, kind)


def switch(*names: str, off: Sequence[str] = ()) -> Flag:
    """A flag without a value."""
    return Flag(names, "switch", tuple(off))


FlagMap = Mapping[str, Flag]


def write_flags(flags: FlagMap, values: Mapping[str, Any]) -> list[str]:
    """The words of values by key, in the order of ``values``; None leaves one out. Raises KeyError."""
    return [word for key, value in values.items() for word in _written(flags[key], value)]


def _written(flag: Flag, value: Any) -> list[str]:
    if value is None:
        return []
    if flag.kind == "switch":
        names = flag.names if value else flag.off
        return [names[0]] if names else []
    if flag.kind == "json":
        return [flag.names[0], json.dumps(value, separators=(",", ":"), sort_keys=True)]
    if flag.kind == "list":
        return [flag.names[0], *map(str, value)] if value else []
    return [flag.names[0], str(value)]


@dataclass(frozen=True, slots=True)
class Typed:
    """One flag as somebody wrote it. ``key`` is None where the flag map does not know it."""

    name: str
    key: str | None
    value: Any
    words: tuple[str, ...]


def read_flags(flags: FlagMap, words: Sequence[str]) -> list[Typed]:
    """Every word of an argument list, in order; words that belong to no flag have an empty name.

    A name with ``_`` for ``-`` is the one with ``-``, as some parsers have it. Raises ValueError naming the flag.
    """
    return list(_read(_by_name(flags), list(words)))


def _by_name(flags: FlagMap) -> dict[str, tuple[str, Flag, bool]]:
    found = {name: (key, one, True) for key, one in flags.items() for name in one.names}
    return found | {name: (key, one, False) for key, one in flags.items() for name in one.off}


def _read(known: Mapping[str, tuple[str, Flag, bool]], rest: list[str]) -> Iterator[Typed]:
    while rest:
        word = rest.pop(0)
        name, separator, value = word.partition("=")
        name = dashed(name) if name not in known and dashed(name) in known else name
        if not is_flag(word):
            yield Typed("", None, word, (word,))
        elif name not in known:
            taken = [rest.pop(0)] if not separator and rest and not is_flag(rest[0]) else []
            yield Typed(name, None, value if separator else next(iter(taken), None), (word, *taken))
        else:
            yield _known(name, known[name], value if separator else None, word, rest)


def dashed(name: str) -> str:
    """A long name with dashes for underscores."""
    return name.replace("_", "-") if name.startswith("--") else name


def _known(
    name: str, found: tuple[str, Flag, bool], value: str | None, word: str, rest: list[str]
) -> Typed:
    key, one, turned = found
    if one.kind == "switch":
        return Typed(name, key, turned if value is None else value.lower() == "true", (word,))
    taken: list[str] = []
    if value is None:
        if not rest or is_flag(rest[0]):
            raise ValueError(f"{name} needs a value")
        taken.append(rest.pop(0))
        while one.kind == "list" and rest and not is_flag(rest[0]):
            taken.append(rest.pop(0))
        value = taken[0]
    said: Any = taken or [value] if one.kind == "list" else value
    return Typed(name, key, _json(name, value) if one.kind == "json" else said, (word, *taken))


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as err:
        raise ValueError(f"{name} {text}: not JSON: {err}") from err


def is_flag(word: str) -> bool:
    """Whether a word is a flag: a dash and no number."""
    return (
        word.startswith("-")
        and len(word) > 1
        and not word[1:].lstrip("-").replace(".", "", 1).isdigit()
    )


def strip_flags(flags: FlagMap, words: Sequence[str], keys: Iterable[str]) -> list[str]:
    """The words without the flags of these keys and their values."""
    gone = frozenset(keys)
    return [
        w
        for one in read_flags(flags, words)
        if one.key not in gone or one.key is None
        for w in one.words
    ]


def unabbreviated(names: Iterable[str], name: str) -> str | None:
    """The one of ``names`` that ``name`` begins, for parsers that would take it for that."""
    if not name.startswith("--") or len(name) < 4:
        return None
    return next(
        (known for known in names if known.startswith(dashed(name)) and known != name), None
    )
