"""Which runtimes are there? (Entry points of the group ``berth.runtimes``; the project's own are no exception.)"""

from functools import cache
from importlib.metadata import entry_points

from berth.runtimes.base import Runtime

GROUP = "berth.runtimes"
DEFAULT = "llamacpp"


def names() -> list[str]:
    """The names of all runtimes, sorted."""
    return sorted(entry.name for entry in entry_points(group=GROUP))


@cache
def runtime(name: str | None = None) -> Runtime:
    """The runtime of that name. Raises KeyError naming those that there are."""
    wanted = name or DEFAULT
    for entry in entry_points(group=GROUP):
        if entry.name == wanted:
            found: Runtime = entry.load()()
            return found
    raise KeyError(f"there is no runtime {wanted!r}; there are {', '.join(names())}")
