"""Does the engine that says it is healthy really answer? One streamed request, read to its end."""

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LONGEST_BODY = 1 << 20
"""Bytes of an answer that are read at most: a test asks for a few words."""
_NOT_SPOKEN = frozenset({400, 404, 405, 501})
"""How an engine answers that lives and does not speak this API: a base model without a chat template."""
_ENDS = frozenset({"response.completed", "response.incomplete", "message_stop"})
"""Types of the last event where the stream has no ``[DONE]``."""


@dataclass(frozen=True)
class SmokeTest:
    """A request to the engine's own API, and what its answer must have."""

    path: str
    body: str
    """JSON, with ``stream`` set."""
    expect: str = ""
    """A text that the answer must contain, upper and lower case alike; empty: any word will do."""
    timeout_s: float = 60.0
    is_asked: bool = True
    """Somebody asked for it; else an engine that has no such API, or no way to chat, passes."""


def smoke_fault(test: SmokeTest, host: str, port: int) -> str:
    """What is wrong with the engine's answer; empty when nothing is.

    1. Status 200; nobody asked for this API and the engine does not speak it: nothing. 2. The stream ends as its API says, not by a cut or an error event. 3. It has
    some text. 4. The text contains what is expected.
    """
    end = time.monotonic() + test.timeout_s
    connection = http.client.HTTPConnection(host, port, timeout=test.timeout_s)
    try:
        return _judge(test, _ask(connection, test, end))
    except TimeoutError:
        return f"{test.path} did not answer in full within {test.timeout_s:.0f} s"
    except (OSError, http.client.HTTPException) as err:
        return f"{test.path} broke off: {type(err).__name__}: {err}"
    finally:
        connection.close()


def _ask(connection: http.client.HTTPConnection, test: SmokeTest, end: float) -> tuple[int, str]:
    headers = {"Content-Type": "application/json", "Connection": "close"}
    connection.request("POST", test.path, test.body.encode(), headers)
    answer = connection.getresponse()
    found = b""
    while len(found) < LONGEST_BODY:
        if time.monotonic() >= end:
            raise TimeoutError
        part = answer.read1(65536)
        if not part:
            break
        found += part
    return answer.status, found.decode(errors="replace")


def _judge(test: SmokeTest, answer: tuple[int, str]) -> str:
    status, body = answer
    if status in _NOT_SPOKEN and not test.is_asked:
        return ""
    if status != http.client.OK:
        return f"{test.path} answered {status}: {body[:200]}"
    said, is_whole = "", False
    for data in _events(body):
        if data == "[DONE]":
            is_whole = True
            continue
        row = _row(data)
        if row.get("error"):
            return f"{test.path} answered with an error: {str(row['error'])[:200]}"
        is_whole = is_whole or row.get("type") in _ENDS
        said += text_of(row)
    if not is_whole:
        return f"the stream of {test.path} ended in the middle, after {len(said)} characters"
    if not said.strip():
        return f"the answer of {test.path} is empty"
    if test.expect.lower() not in said.lower():
        return f"the answer does not contain {test.expect!r}: {said[:120]!r}"
    return ""


def _events(body: str) -> Iterator[str]:
    for line in body.splitlines():
        if line.startswith("data:"):
            yield line[5:].strip()


def _row(data: str) -> dict[str, Any]:
    try:
        row = json.loads(data)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def text_of(row: dict[str, Any]) -> str:
    """The text that one event of a chat, completion, responses or messages stream carries."""
    choices = row.get("choices")
    if isinstance(choices, list):
        return "".join(_choice_text(choice) for choice in choices if isinstance(choice, dict))
    delta = row.get("delta")
    if isinstance(delta, dict):
        return str(delta.get("text") or delta.get("thinking") or "")
    return str(delta or "") if str(row.get("type", "")).endswith("text.delta") else ""


def _choice_text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    told = delta if isinstance(delta, dict) else {}
    return str(told.get("content") or told.get("reasoning_content") or choice.get("text") or "")
