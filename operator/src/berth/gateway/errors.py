"""Which errors does the gateway give, with which status, and what do they mean?

The one table: the code below reads it, and ``docs/reference/errors.md`` is printed from it by
``python -m berth.gateway.errors``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from berth.reasons import Reason


class Retry(StrEnum):
    """Which Retry-After an error carries."""

    NEVER = "none"
    LOAD_TIME = "the median of the model's last five start times, at least 1"
    HOLD = "what is left of the hold's budget, and the median of the model's last five start times"
    STOPPING = "30"
    LIMIT = "until the next request is let in, at least 1"


@dataclass(frozen=True)
class ErrorKind:
    """One row of the table. ``type`` and ``code`` are OpenAI's own where it has a word."""

    code: str
    status: int
    type: str
    retry: Retry
    meaning: str


_BAD = "invalid_request_error"
_SERVER = "server_error"

TABLE: tuple[ErrorKind, ...] = (
    ErrorKind("invalid_request", 400, _BAD, Retry.NEVER, "The request is not HTTP that the gateway can read."),
    ErrorKind("invalid_json", 400, _BAD, Retry.NEVER, "The body is not valid JSON, or its `model` is not a string."),
    ErrorKind("invalid_multipart", 400, _BAD, Retry.NEVER, "The body is not the multipart form that its Content-Type promises."),
    ErrorKind("missing_model", 400, _BAD, Retry.NEVER, "The body names no `model`."),
    ErrorKind("invalid_api_key", 401, _BAD, Retry.NEVER, "No API key was sent, or it is not one of those that the gateway knows."),
    ErrorKind("model_not_allowed", 403, _BAD, Retry.NEVER, "The API key may not use this model."),
    ErrorKind("model_not_found", 404, _BAD, Retry.NEVER, "No Model declares this id or alias where the caller may look."),
    ErrorKind("api_not_offered", 404, _BAD, Retry.NEVER, "The model's engine does not speak the API of this path; `berth.apis` lists those that it speaks."),
    ErrorKind("unknown_url", 404, _BAD, Retry.NEVER, "The gateway does not serve this path."),
    ErrorKind("method_not_allowed", 405, _BAD, Retry.NEVER, "The path is served, with another method (see `Allow`)."),
    ErrorKind("ambiguous_model", 409, _BAD, Retry.NEVER, "Several Models hold this id; ask for `namespace::id`."),
    ErrorKind("request_too_large", 413, _BAD, Retry.NEVER, "The body is above the limit (`BERTH_BODY_LIMIT`)."),
    ErrorKind("unsupported_encoding", 415, _BAD, Retry.NEVER, "The body is compressed; send it plain."),
    ErrorKind("queue_full", 429, "rate_limit_error", Retry.LOAD_TIME, "So many requests wait for this model in this gateway that no more are let in."),
    ErrorKind("key_limit", 429, "rate_limit_error", Retry.LIMIT, "The API key made, or has under way, as many requests as it may."),
    ErrorKind("internal_error", 500, _SERVER, Retry.NEVER, "A bug of the gateway; its log has the trace under the request's id."),
    ErrorKind("runner_failed", 502, _SERVER, Retry.NEVER, "The request was sent to runners and each died before the first byte of an answer."),
    ErrorKind("bad_runner_answer", 502, _SERVER, Retry.NEVER, "The runner's answer is not the HTTP, or not the event stream, that was to come."),
    ErrorKind("runner_died", 502, _SERVER, Retry.NEVER, "The runner went away in the middle of the answer; what came before is incomplete. Comes as an event in the stream."),
    ErrorKind("insufficient_capacity", 503, _SERVER, Retry.NEVER, "The model fits no node, even with everything evictable gone."),
    ErrorKind("no_evictable_model", 503, _SERVER, Retry.NEVER, "Only pinned models are in the way."),
    ErrorKind("no_matching_node", 503, _SERVER, Retry.NEVER, "No node matches the model's node selector, tolerations and device."),
    ErrorKind("no_matching_device", 503, _SERVER, Retry.NEVER, "No device matches what the model asks for."),
    ErrorKind("cpu_runners_not_allowed", 503, _SERVER, Retry.NEVER, "The model could run on CPUs only, and the residency policy forbids it."),
    ErrorKind("host_path_not_allowed", 503, _SERVER, Retry.NEVER, "The model's hostPath is not on the list of any residency policy."),
    ErrorKind("code_not_trusted", 503, _SERVER, Retry.NEVER, "The model's profile brings code to run on a node, and no residency policy trusts that."),
    ErrorKind("model_failed", 503, _SERVER, Retry.NEVER, "The model cannot be loaded; somebody must change something."),
    ErrorKind("model_suspended", 503, _SERVER, Retry.NEVER, "The Model says `suspend: true`."),
    ErrorKind("model_held", 503, _SERVER, Retry.HOLD, "A Hold keeps the model's nodes; it is back when that ends."),
    ErrorKind("model_not_ready", 503, _SERVER, Retry.LOAD_TIME, "The wait for the model ran out; it is still coming."),
    ErrorKind("gateway_stopping", 503, _SERVER, Retry.STOPPING, "This gateway is shutting down; another one answers."),
    ErrorKind("gateway_starting", 503, _SERVER, Retry.LOAD_TIME, "This gateway has not read the list of models yet."),
)  # fmt: skip

BY_CODE: Mapping[str, ErrorKind] = {kind.code: kind for kind in TABLE}

FINAL_REFUSALS: Mapping[str, str] = {
    Reason.NEVER_FITS: "insufficient_capacity",
    Reason.ONLY_PINNED: "no_evictable_model",
    Reason.NO_NODE: "no_matching_node",
    Reason.NO_DEVICE: "no_matching_device",
    Reason.CPU_NOT_ALLOWED: "cpu_runners_not_allowed",
    Reason.UNTRUSTED_PATH: "host_path_not_allowed",
    Reason.UNTRUSTED_CODE: "code_not_trusted",
}
"""Refusals that waiting does not mend (docs/design/0001), and their error codes."""


class Refused(Exception):  # noqa: N818 - an answer, not an error of the program
    """The gateway's own answer to a request that it does not pass on."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        facts: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = BY_CODE[code]
        self.message = message
        self.param = param
        self.facts = dict(facts or {})
        self.allow = allow
        self.retry_after = _retry_after(self.kind.retry, retry_after)

    @property
    def status(self) -> int:
        return self.kind.status

    def error(self) -> dict[str, Any]:
        """The value of ``error`` in the body: OpenAI's four fields, and ours."""
        body: dict[str, Any] = {
            "message": self.message,
            "type": self.kind.type,
            "param": self.param,
            "code": self.kind.code,
        }
        if self.facts:
            body["berth"] = self.facts
        return body

    def body(self) -> bytes:
        return json.dumps({"error": self.error()}, ensure_ascii=False).encode()

    def headers(self) -> dict[str, str]:
        """What goes with it. ``x-should-retry`` keeps OpenAI's SDKs from asking again in vain."""
        headers = {"Content-Type": "application/json"}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        elif self.status in (409, 503):
            headers["X-Should-Retry"] = "false"
        if self.allow:
            headers["Allow"] = self.allow
        return headers


def _retry_after(retry: Retry, load_time: int | None) -> int | None:
    if retry is Retry.NEVER:
        return None
    return 30 if retry is Retry.STOPPING else max(1, load_time or 1)


def reference() -> str:
    """``docs/reference/errors.md``."""
    rows = "\n".join(
        f"| `{kind.code}` | {kind.status} | `{kind.type}` | {kind.retry.value} | {kind.meaning} |"
        for kind in TABLE
    )
    return _PAGE.replace("ROWS", rows)


_PAGE = """# Errors of the gateway

Printed by `python -m berth.gateway.errors`; a test compares them.

Every error that the gateway itself gives has the shape of OpenAI's:
`{"error": {"message", "type", "param", "code", "berth"}}`. `berth` holds what the gateway knows of the model
(`model`, `state`, `since`, `reason`, `message`, `profile`, `nextRetry`, `places`, `hold`, `position`, `waited`, `timeLeft`, `apis`), as far as
there is something to say.
Errors of an engine are passed on as they are. In a stream that has begun, the same object comes as an event,
`data: {"error": …}`, and no `[DONE]` follows.

| code | status | type | Retry-After | meaning |
|---|---|---|---|---|
ROWS

Errors 409 and 503 without Retry-After carry `X-Should-Retry: false`, which OpenAI's own SDKs obey.
"""


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference())
