"""Which runtimes are there? (Entry points of the group ``berth.runtimes``; the project's own are no exception.)

A runtime is used when its name is switched on. One that cannot be used is refused by name; the others work.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from berth.runtimes.base import API_VERSION, Runtime, Traits

GROUP = "berth.runtimes"
DEFAULT = "llamacpp"
OWN = "berth-operator"
BUILT_IN = ("llamacpp", "vllm", "sglang", "tensorrt-llm", "max", "command")


@dataclass(frozen=True)
class Registry:
    """The runtimes that are switched on, and why others are not there."""

    runtimes: Mapping[str, Runtime]
    refused: Mapping[str, str]

    def get(self, name: str | None = None) -> Runtime:
        """The runtime of that name. Raises KeyError saying why there is none, or naming those that there are."""
        wanted = name or DEFAULT
        found = self.runtimes.get(wanted)
        if found is not None:
            return found
        if wanted in self.refused:
            raise KeyError(f"the runtime {wanted!r} is refused: {self.refused[wanted]}")
        raise KeyError(
            f"there is no runtime {wanted!r}; there are {', '.join(sorted(self.runtimes))}"
        )


def load(enabled: Iterable[str], entries: Iterable[EntryPoint]) -> Registry:
    """The registry out of entry points; nothing that is not switched on is imported."""
    wanted, entries = frozenset(enabled), tuple(entries)
    runtimes: dict[str, Runtime] = {}
    refused: dict[str, str] = {}
    for entry in sorted(entries, key=_age):
        if entry.name not in wanted:
            continue
        if entry.name in runtimes or entry.name in refused:
            refused[f"{entry.name} of {entry.value}"] = "another runtime has this name"
            continue
        try:
            runtimes[entry.name] = _checked(entry)
        except Exception as err:  # noqa: BLE001 - a stranger's module may do anything when it is imported
            refused[entry.name] = f"{type(err).__name__}: {err}"
    for name in wanted - {entry.name for entry in entries}:
        refused[name] = "it is switched on, and no installed package has it"
    return Registry(runtimes, refused)


def _age(entry: EntryPoint) -> tuple[bool, str]:
    """The project's own come first: a plugin does not take their names."""
    return (entry.dist is None or entry.dist.name != OWN, entry.value)


def _checked(entry: EntryPoint) -> Runtime:
    """The runtime of an entry point. Raises TypeError or ValueError naming what is wrong with it."""
    found: Runtime = entry.load()()
    traits = getattr(found, "traits", None)
    if not isinstance(traits, Traits):
        raise TypeError(f"{entry.value} has no traits")
    if traits.api_version != API_VERSION:
        raise ValueError(
            f"it was written for version {traits.api_version} of the API, this is {API_VERSION}"
        )
    if traits.name != entry.name:
        raise ValueError(f"its traits say {traits.name!r}")
    if not callable(getattr(found, "command", None)) or not callable(getattr(found, "ways", None)):
        raise TypeError(f"{entry.value} makes no command")
    return found


@cache
def registry(enabled: tuple[str, ...] = BUILT_IN) -> Registry:
    """The registry of what is installed here."""
    return load(enabled, tuple(entry_points(group=GROUP)))


def runtime(name: str | None = None) -> Runtime:
    """A built-in runtime. Raises KeyError."""
    return registry().get(name)
