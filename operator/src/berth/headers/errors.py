"""Why could a header not be read?"""

from enum import StrEnum


class HeaderReason(StrEnum):
    """The reasons, as they stand in a Model's condition."""

    INVALID_GGUF = "InvalidGGUF"
    INVALID_HEADER = "InvalidHeader"
    MISSING_SHARD = "MissingShard"
    AMBIGUOUS_FILE = "AmbiguousFile"
    NO_MODEL_FILE = "NoModelFile"
    SOURCE_UNAUTHORIZED = "SourceUnauthorized"
    SOURCE_NOT_FOUND = "SourceNotFound"
    SOURCE_UNREACHABLE = "SourceUnreachable"
    SOURCE_FORBIDDEN = "SourceForbidden"
    SOURCE_TOO_SLOW = "SourceTooSlow"
    SOURCE_FAILED = "SourceFailed"
    FACTS_TOO_LARGE = "FactsTooLarge"


class HeaderError(Exception):
    """A header that could not be read: ``reason`` for a condition, ``message`` for people."""

    def __init__(self, reason: HeaderReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def invalid_gguf(message: str) -> HeaderError:
    """An error about a file that claims to be GGUF and is not sound."""
    return HeaderError(HeaderReason.INVALID_GGUF, message)


def invalid_header(message: str) -> HeaderError:
    """An error about a safetensors header, an index or a ``config.json`` that is not sound."""
    return HeaderError(HeaderReason.INVALID_HEADER, message)
