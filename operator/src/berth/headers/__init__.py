"""What is in a model's files, read from their headers alone?

`read.read_source` reads in this process (command line); `pool.HeaderPool` reads in child processes that
hold no credentials but the one for that source (controller, agent).
"""

from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.request import (
    FileRef,
    HeaderRequest,
    HeaderResult,
    HubSource,
    PathSource,
    UrlSource,
)

__all__ = [
    "FileRef",
    "HeaderError",
    "HeaderReason",
    "HeaderRequest",
    "HeaderResult",
    "HubSource",
    "PathSource",
    "UrlSource",
]
