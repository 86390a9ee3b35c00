"""Which files does the engine go on reading after the load, so that their page cache must stay?"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from berth.api.model import FileFact
from berth.api.profile import ProfileFields


def warm_files(fields: ProfileFields, files: Iterable[FileFact]) -> list[FileFact]:
    """Those that a pattern of ``keepWarm`` matches, by their whole name or its last part."""
    patterns = fields.keep_warm or ()
    return [file for file in files if any(_matches(file.name, pattern) for pattern in patterns)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern)
