"""What is a short streamed request in each API, and what does its answer say?"""

import json
from typing import Any

from berth.runtimes.base import Probe

PATHS = {
    Probe.CHAT: "/v1/chat/completions",
    Probe.RESPONSES: "/v1/responses",
    Probe.MESSAGES: "/v1/messages",
}


def probe_request(
    probe: Probe, *, model: str, prompt: str, tokens: int = 16
) -> tuple[str, dict[str, Any]]:
    """The path and the JSON body of a streamed request of at most ``tokens`` tokens."""
    if probe is Probe.RESPONSES:
        return PATHS[probe], {
            "model": model,
            "input": prompt,
            "max_output_tokens": tokens,
            "stream": True,
        }
    messages = [{"role": "user", "content": prompt}]
    return PATHS[probe], {
        "model": model,
        "messages": messages,
        "max_tokens": tokens,
        "stream": True,
    }


def probe_text(probe: Probe, data: str) -> str:
    """The text that one ``data:`` line of the stream carries; empty for any other line."""
    try:
        row = json.loads(data)
    except ValueError:
        return ""
    if not isinstance(row, dict):
        return ""
    if probe is Probe.CHAT:
        return "".join(_chat(choice) for choice in row.get("choices") or ())
    if probe is Probe.RESPONSES:
        return (
            str(row.get("delta") or "") if row.get("type") == "response.output_text.delta" else ""
        )
    delta = row.get("delta")
    is_text = row.get("type") == "content_block_delta" and isinstance(delta, dict)
    return str(delta.get("text") or "") if is_text and isinstance(delta, dict) else ""


def _chat(choice: Any) -> str:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    return str((delta or {}).get("content") or (delta or {}).get("reasoning_content") or "")
