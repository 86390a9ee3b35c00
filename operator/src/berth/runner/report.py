"""What does the runner leave behind for the controller to read? One short JSON message.

Kubernetes keeps at most 4096 bytes of ``/dev/termination-log`` per container.
"""

import json
from pathlib import Path

from berth.runner.verdict import Verdict

MESSAGE_LIMIT = 512
"""Longest sentence, in characters."""
TOTAL_LIMIT = 4096


def render_report(verdict: Verdict, status: int | None, lines: list[str]) -> str:
    """The message: ``reason``, ``exitCode``, ``message``, and of the engine ``status`` or
    ``signal`` and its last ``lines``; the oldest lines go first when it would be too long.
    """
    report: dict[str, object] = {
        "reason": verdict.code.reason,
        "exitCode": int(verdict.code),
        "message": verdict.message[:MESSAGE_LIMIT],
    }
    if status is not None:
        report["signal" if status < 0 else "status"] = abs(status)
    while True:
        text = json.dumps({**report, "lines": lines}, ensure_ascii=False)
        if len(text.encode()) <= TOTAL_LIMIT or not lines:
            return text
        lines = lines[1:]


def write_report(path: str, text: str) -> bool:
    """Write the message where the kubelet reads it; False when it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError:
        return False
    return True
