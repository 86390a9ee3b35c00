"""Which paths does the gateway pass on, as which API, and how do their streams speak?"""

from dataclasses import dataclass
from enum import StrEnum


class Dialect(StrEnum):
    """How a stream of this API carries a keepalive and an error."""

    CHAT = "chat"
    EVENTS = "events"
    MESSAGES = "messages"
    RESPONSES = "responses"
    NONE = "none"
    """No event stream that could begin before its answer."""


@dataclass(frozen=True)
class Api:
    """One API: runtimes declare it by ``name``."""

    name: str
    dialect: Dialect
    paths: tuple[str, ...]


APIS: tuple[Api, ...] = (
    Api("chat", Dialect.CHAT, ("/v1/chat/completions",)),
    Api("chat", Dialect.NONE, ("/v1/chat/completions/input_tokens", "/apply-template")),
    Api("completions", Dialect.EVENTS, ("/v1/completions", "/completion", "/completions")),
    Api("responses", Dialect.RESPONSES, ("/v1/responses",)),
    Api("responses", Dialect.NONE, ("/v1/responses/input_tokens",)),
    Api("messages", Dialect.MESSAGES, ("/v1/messages",)),
    Api("messages", Dialect.NONE, ("/v1/messages/count_tokens",)),
    Api("embeddings", Dialect.NONE, ("/v1/embeddings", "/embedding", "/embeddings")),
    Api("rerank", Dialect.NONE, ("/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking")),
    Api("score", Dialect.NONE, ("/v1/score", "/score")),
    Api("pooling", Dialect.NONE, ("/v1/pooling", "/pooling")),
    Api("classify", Dialect.NONE, ("/v1/classify", "/classify")),
    Api("moderations", Dialect.NONE, ("/v1/moderations",)),
    Api("audio", Dialect.NONE, ("/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations")),
    Api("images", Dialect.NONE, ("/v1/images/generations", "/v1/images/edits", "/v1/images/variations")),
    Api("videos", Dialect.NONE, ("/v1/videos",)),
    Api("tokenize", Dialect.NONE, ("/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize")),
    Api("infill", Dialect.EVENTS, ("/infill", "/v1/infill")),
)  # fmt: skip

BY_PATH: dict[str, Api] = {path: api for api in APIS for path in api.paths}
"""Anything that is not here is 404. Engines' administration paths (``/slots``, ``/props``, ``/metrics``,
``/lora-adapters``, ``/sleep`` …) are left out on purpose: they read or change other clients' work."""
