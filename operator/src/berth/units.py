"""How are bytes, durations and Kubernetes quantities written, read and shown?"""

import re
from decimal import Decimal, InvalidOperation
from typing import NewType

Bytes = NewType("Bytes", int)
"""A count of bytes. Never a bare int for memory."""

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30

_BINARY = {
    "": 1,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
    "Ei": 1 << 60,
}
_DECIMAL = {"m": Decimal("0.001")} | {
    letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)
}
_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(?:([KMGTPE]i)B?|([mkMGTPE])B?|B)?$")

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE])?$"
"""What the CRDs accept for memory: a Kubernetes quantity without sign and exponent."""

DURATION_PATTERN = r"^(0|([0-9]+(\.[0-9]+)?(h|m|s|ms))+)$"
"""What the CRDs accept for a span of time: Go's duration syntax without sign, or ``0``."""

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse_quantity(text: str | int) -> Bytes:
    """Bytes of a Kubernetes quantity (``512Mi``, ``24GiB``, ``1.5G``, ``1000m``), rounded up.

    Raises ValueError naming the text when it is not one.
    """
    if isinstance(text, int):
        return Bytes(text)
    match = _QUANTITY.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity of bytes such as 512Mi, 24Gi or 1000000")
    number, binary, decimal = match.groups()
    factor = Decimal(1)
    if binary or decimal:
        factor = Decimal(_BINARY[binary]) if binary else Decimal(_DECIMAL[decimal])
    try:
        exact = Decimal(number) * factor
    except InvalidOperation as err:
        raise ValueError(f"{text!r} is not a quantity of bytes") from err
    return Bytes(int(exact.to_integral_value(rounding="ROUND_CEILING")))


def parse_duration(text: str) -> float:
    """Seconds of a duration such as ``30m``, ``1h30m``, ``250ms`` or ``0``.

    Raises ValueError naming the text when it is not one.
    """
    if text == "0":
        return 0.0
    if re.match(DURATION_PATTERN, text) is None:
        raise ValueError(f"{text!r} is not a duration such as 30m, 900s or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def show_bytes(count: int) -> str:
    """Bytes for people: three significant figures and a binary unit, ``41.2 GiB``, ``606 MiB``."""
    for unit, size in (("TiB", 1 << 40), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(count) >= size:
            value = count / size
            return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"
    return f"{count} B"


def show_seconds(seconds: float) -> str:
    """Seconds for people: ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"
