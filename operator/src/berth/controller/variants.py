"""In which ways can a Model be launched, and with which command? One variant a Need."""

from dataclasses import dataclass

from berth.api.meta import EnvVar


@dataclass(frozen=True)
class Variant:
    """One way to launch: what was priced under this name is what runs."""

    name: str
    image: str
    command: tuple[str, ...]
    env: tuple[EnvVar, ...] = ()
    port: int = 8080
    host_file_pages: int = 0
    """Bytes of mapped weights that the engine reads again and again."""
    hang_timeout_s: float = 120.0


def variant_of(variants: tuple[Variant, ...], name: str) -> Variant:
    """The variant that the planner chose. Raises KeyError when it was priced away meanwhile."""
    for variant in variants:
        if variant.name == name:
            return variant
    raise KeyError(name)
