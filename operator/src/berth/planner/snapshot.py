"""How is a snapshot written down, so that any pass can be replayed?"""

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from berth.planner.state import State


def state_to_json(state: State) -> str:
    """The snapshot as one JSON document, its keys in order, so that two can be compared by eye."""
    return json.dumps(dump(state), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def state_from_json(text: str) -> State:
    """The inverse of ``state_to_json``. Raises ValueError with a sentence about what is wrong."""
    try:
        found = json.loads(text)
    except ValueError as err:
        raise ValueError(f"it is not JSON: {err}") from err
    if not isinstance(found, dict) or not {"now", "epoch"} <= found.keys():
        raise ValueError("it is no snapshot: `now` and `epoch` are missing")
    try:
        return load(found)
    except (TypeError, KeyError, AttributeError) as err:
        raise ValueError(f"it is no whole snapshot: {err}") from err


def dump(value: Any) -> Any:
    """The value as plain JSON types; fields at their defaults are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: dump(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not _is_default(field, getattr(value, field.name))
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): dump(item) for key, item in value.items()}
    if isinstance(value, (frozenset, set)):
        return sorted(dump(item) for item in value)
    if isinstance(value, (tuple, list)):
        return [dump(item) for item in value]
    return value


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(field.default == value)
    if field.default_factory is not dataclasses.MISSING:
        return bool(field.default_factory() == value)
    return False


def load(text: Mapping[str, Any]) -> State:
    """The snapshot that ``dump`` wrote. Unknown fields are ignored: older Berths read newer dumps.

    Raises TypeError or ValueError where a field is missing or has no such value.
    """
    found = _load(State, text)
    if not isinstance(found, State):
        raise TypeError("not a snapshot")
    return found


def _load(kind: Any, value: Any) -> Any:
    if isinstance(kind, NewType):
        return _load(kind.__supertype__, value)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return None if value is None else _load(_not_none(kind), value)
    if origin is tuple:
        return _load_tuple(get_args(kind), value)
    if origin is frozenset:
        return frozenset(_load(get_args(kind)[0], item) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _load(get_args(kind)[1], item) for key, item in value.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{key: _load(hints[key], item) for key, item in value.items() if key in hints})
    if isinstance(kind, type) and issubclass(kind, Enum | float):
        return kind(value)
    if kind in (int, str, bool) and type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _load_tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_load(kinds[0], item) for item in value)
    return tuple(_load(kind, item) for kind, item in zip(kinds, value, strict=True))


def _not_none(kind: Any) -> Any:
    return next(arg for arg in get_args(kind) if arg is not type(None))
