"""Which of a header's values may be kept in an object of the API server?"""

import json
import math

from berth.facts import MAX_JSON, Facts, Scalar, Value
from berth.headers.errors import invalid_header

MAX_WORD = 128
_MAX_INTEGER = 1 << 53


def can_keep(value: Value) -> bool:
    """Whether JSON and int64 can hold it: no NaN, no infinity, no number beyond 2^53, no long text."""
    if isinstance(value, tuple):
        return all(_can_keep(member) for member in value)
    return _can_keep(value)


def _can_keep(value: Scalar) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_WORD
    return math.isfinite(value) and abs(value) <= _MAX_INTEGER


def bounded(facts: Facts) -> Facts:
    """The same facts. Raises HeaderError where they would not fit in a Model's status."""
    length = len(json.dumps(facts.to_json(), separators=(",", ":")))
    if length > MAX_JSON:
        raise invalid_header(f"the header's facts take {length} bytes; {MAX_JSON} can be kept")
    return facts
