"""When is a source that could not be read asked again?"""

from berth.headers import HeaderReason
from berth.reasons import Reason

_FIRST_RETRY_S = 5.0
_LONGEST_RETRY_S = 300.0
_FINAL = frozenset(
    {
        HeaderReason.INVALID_GGUF,
        HeaderReason.INVALID_HEADER,
        HeaderReason.MISSING_SHARD,
        HeaderReason.AMBIGUOUS_FILE,
        HeaderReason.NO_MODEL_FILE,
        HeaderReason.SOURCE_FORBIDDEN,
        HeaderReason.FACTS_TOO_LARGE,
    }
)
"""Reading again gives the same answer, as long as neither Model nor source changes."""
_CHEAP_RETRY_S = 30.0
"""One question to the API server: people who have just made the claim should not wait longer."""


def pause_s(failures: int, word: str) -> float:
    """Seconds until the next try after so many failures in a row, the last one for ``word``."""
    if word in _FINAL:
        return _LONGEST_RETRY_S
    longest = _CHEAP_RETRY_S if word == Reason.CLAIM_NOT_FOUND else _LONGEST_RETRY_S
    return min(longest, _FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))
