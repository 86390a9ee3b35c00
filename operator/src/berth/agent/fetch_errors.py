"""Why can a file not be had? One typed error per reason, with what to do in its text."""

from typing import ClassVar

from berth.reasons import Reason


class FetchError(Exception):
    """A file that could not be had. ``reason`` goes into ``status.agent.fetch``."""

    reason: ClassVar[Reason]
    is_transient: ClassVar[bool] = False
    """Whether the same request may well succeed in a moment."""


class SourceUnauthorizedError(FetchError):
    """The source wants another token, or any."""

    reason = Reason.SOURCE_UNAUTHORIZED


class SourceNotFoundError(FetchError):
    """The source has no such file."""

    reason = Reason.SOURCE_NOT_FOUND


class SourceForbiddenError(FetchError):
    """The source policy does not allow this URL, this address, or this name."""

    reason = Reason.SOURCE_FORBIDDEN


class SourceUnreachableError(FetchError):
    """The source did not answer, broke off, or said that it is unwell."""

    reason = Reason.SOURCE_UNREACHABLE
    is_transient = True


class SourceChangedError(FetchError):
    """The source no longer has the file whose header was read."""

    reason = Reason.SOURCE_CHANGED


class HashMismatchError(FetchError):
    """The whole file arrived and is not the file that was promised."""

    reason = Reason.HASH_MISMATCH


class DiskFullError(FetchError):
    """The file does not fit on the node's disk beside what is in use there."""

    reason = Reason.DISK_FULL
