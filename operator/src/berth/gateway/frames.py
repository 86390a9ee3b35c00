"""What does a stream say while its model loads, and when it fails?"""

import json
import time
from collections.abc import Mapping
from typing import Any

from berth.gateway.routes import Dialect


def keepalive(dialect: Dialect, *, model: str, request_id: str, facts: Mapping[str, Any]) -> bytes:
    """A frame that says nothing and keeps every idle timer on the way from firing.

    Chat streams get a data frame, since some clients and proxies count only data. Its choice is
    there (clients read ``choices[0]``) and its content empty; no role, which SDKs would add up.
    """
    if dialect is not Dialect.CHAT:
        return b": berth " + _compact(facts) + b"\n\n"
    chunk = {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": None}
        ],
        "berth": dict(facts),
    }
    return b"data: " + _compact(chunk) + b"\n\n"


def error_event(dialect: Dialect, error: Mapping[str, Any]) -> bytes:
    """The error as the last event of a stream; no ``[DONE]`` follows."""
    if dialect is Dialect.MESSAGES:
        kind = "overloaded_error" if error.get("code") != "runner_died" else "api_error"
        body = {"type": "error", "error": {**error, "type": kind}}
        return b"event: error\ndata: " + _compact(body) + b"\n\n"
    if dialect is Dialect.RESPONSES:
        body = {**error, "type": "error"}
        return b"event: error\ndata: " + _compact(body) + b"\n\n"
    return b"data: " + _compact({"error": dict(error)}) + b"\n\n"


def _compact(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
