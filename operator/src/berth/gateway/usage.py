"""How many tokens did an answer have, by the engine's own word? Read from its last bytes only."""

from dataclasses import dataclass

TAIL = 8192


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
    return Usage(
        prompt=_number(tail, b'"prompt_tokens":', b'"input_tokens":', b'"prompt_n":'),
        completion=_number(tail, b'"completion_tokens":', b'"output_tokens":', b'"predicted_n":'),
        cached=_number(tail, b'"cached_tokens":', b'"cache_n":', b'"cache_read_input_tokens":'),
        finish=_word(tail, b'"finish_reason":') or _word(first[-TAIL:], b'"finish_reason":'),
    )


def _number(text: bytes, *names: bytes) -> int | None:
    for name in names:
        at = text.rfind(name)
        if at >= 0:
            digits = text[at + len(name) : at + len(name) + 20].lstrip().split(b",")[0]
            digits = digits.split(b"}")[0].strip()
            if digits.isdigit():
                return int(digits)
    return None


def _word(text: bytes, name: bytes) -> str:
    """The last string value of ``name``; nulls (of chunks before the last) are passed over."""
    at = text.rfind(name + b'"')
    gap = 0
    if at < 0:
        at, gap = text.rfind(name + b' "'), 1
    if at < 0:
        return ""
    start = at + len(name) + 1 + gap
    end = text.find(b'"', start, start + 32)
    return text[start:end].decode("ascii", "replace") if end > 0 else ""
