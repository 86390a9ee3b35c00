"""What did the engine say, at which level, and what of it may be told to others?

Every line becomes ``level: category: message``. llama.cpp writes ``0.05.532.655 I srv  load_model:
text`` (common/log.cpp: seconds since the start, a level letter, a component); vLLM and SGLang
write Python's logging (``INFO 01-02 03:04:05 [file.py:7] text``, ``[2026-01-02 03:04:05] text``).
"""

import re
from collections import deque
from dataclasses import dataclass

LINE_LIMIT = 4096
"""Longest line that is relayed, in characters; the rest is cut."""
TAIL_LINES = 20
TAIL_BYTES = 2048
"""Bounds of what the termination message carries."""

_LETTERS = {"I": "info", "W": "warning", "E": "error", "D": "debug", "T": "debug"}
_LLAMA = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} ([IWEDT]) (?:([a-z]{3,4}) +)?(.*)$", re.DOTALL)
_PYTHON = re.compile(
    r"^(?:\([^)]*\) )?(DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?:\d\d-\d\d \d\d:\d\d:\d\d )?(?:\[([^\]]+?)(?::\d+)?\] )?(.*)$",
    re.DOTALL,
)
_BAD = re.compile(
    r"^error|GGML_ASSERT|ggml_abort|terminate called|what\(\):|Traceback|^\w*(Error|Exception):"
    r"|out of memory|CUDA error|[Ss]egmentation fault",
)
_REQUEST = frozenset({"slot", "res", "que"})
"""Components of llama.cpp that speak of single requests."""


_ORDER = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Line:
    """One line of an engine, understood."""

    level: str
    category: str
    message: str

    def is_at_least(self, level: str) -> bool:
        """Whether it is as grave as ``level``; an unknown level lets everything pass."""
        return level not in _ORDER or _ORDER.index(self.level) >= _ORDER.index(level)

    def __str__(self) -> str:
        """The form in which every engine's log reaches the pod's log."""
        return f"{self.level}: {self.category}: {self.message}"


def read_line(text: str) -> Line:
    """A line of any engine as level, category and message. What is unknown is ``info: engine``."""
    text = text.rstrip("\r\n")
    if len(text) > LINE_LIMIT:
        text = text[:LINE_LIMIT] + "…"
    if match := _LLAMA.match(text):
        letter, component, message = match.groups()
        return Line(_LETTERS[letter], component or "llama", message.strip())
    if match := _PYTHON.match(text):
        level, source, message = match.groups()
        return Line(level.lower().replace("critical", "error"), source or "engine", message)
    return Line("error" if _BAD.search(text) else "info", "engine", text)


class Tail:
    """The last lines that the termination message may carry: never a word of a prompt.

    Before the engine is up no request has reached it, so every line may be told. Afterwards only
    warnings and errors that do not speak of one request are kept, with quoted text and JSON cut
    out, since engines quote what they could not parse.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self.is_private = False

    def add(self, line: Line) -> None:
        """Remember a line if it may be told. Set `is_private` once requests can arrive."""
        if line.level == "debug" or line.category in _REQUEST or not line.message:
            return
        if not self.is_private:
            self._lines.append(str(line))
        elif line.level in {"warning", "error"}:
            self._lines.append(redact(str(line)))

    def lines(self) -> list[str]:
        """The newest lines that fit the bounds, oldest first."""
        kept: list[str] = []
        left = TAIL_BYTES
        for line in reversed(self._lines):
            cost = len(line.encode()) + 1
            if cost > left:
                break
            kept.append(line)
            left -= cost
        return kept[::-1]


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[{\[].*", re.DOTALL)


def redact(text: str) -> str:
    """The text without anything quoted and without everything after an opening brace."""
    return _QUOTED.sub("…", text)
