"""How many tokens did an answer have, by the engine's own word? Read from its last bytes only."""

import re
from dataclasses import dataclass

TAIL = 8192
_digits = re.compile(rb"\s*(\d{1,15})").match


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer cost. ``None`` where the engine did not say."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    finish: str = ""


def read_usage(first: bytes, tail: bytes) -> Usage:
    """From the usage object (chat, responses, messages) or llama-server's timings.

    ``first`` is where whole answers of llama-server have their finish reason. Text of the answer
    cannot be mistaken for it: its quotes are escaped.
    """
    tail = tail[-TAIL:]
    at = tail.rfind(b'"usage":')
    if at < 0:
        at = tail.rfind(b'"timings":')
    finish = _word(tail, b'"finish_reason":') or _word(first[-TAIL:], b'"finish_reason":')
    if at < 0:
        return Usage(finish=finish)
    figures = tail[at:]
    return Usage(
        prompt=_number(figures, b'"prompt_tokens":', b'"input_tokens":', b'"prompt_n":'),
        completion=_number(
            figures, b'"completion_tokens":', b'"output_tokens":', b'"predicted_n":'
        ),
        cached=_number(figures, b'"cached_tokens":', b'"cache_n":', b'"cache_read_input_tokens":')
        if b"cache" in figures
        else None,
        finish=finish,
    )


def _number(text: bytes, *names: bytes) -> int | None:
    for name in names:
        at = text.rfind(name)
        if at >= 0:
            digits = _digits(text, at + len(name))
            if digits is not None:
                return int(digits[1])
    return None


def _word(text: bytes, name: bytes) -> str:
    """The last string value of ``name``; nulls (of chunks before the last) are passed over."""
    at = text.rfind(name)
    while at >= 0:
        value = text[at + len(name) : at + len(name) + 32].lstrip()
        if value.startswith(b'"'):
            return value[1:].partition(b'"')[0].decode("ascii", "replace")
        at = text.rfind(name, 0, at)
    return ""
