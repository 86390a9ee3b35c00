"""What do placeholders stand for, and which words does a command template become?"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from berth.runtimes.base import Launch, Traits
from berth.runtimes.flags import read_flags, strip_flags

if TYPE_CHECKING:
    from berth.api.profile import ProfileFields

_HOLE = re.compile(r"\{([A-Za-z][A-Za-z0-9.]*)\}")


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders filled in. Braces around anything else (JSON, Jinja) stay."""
    return _HOLE.sub(lambda found: values.get(found.group(1), found.group(0)), text)


def fill_template(text: str, values: Mapping[str, str]) -> str:
    """The same for a word of a command template, where each name in braces must be a placeholder.

    Raises ValueError naming one that there is not, and those that there are.
    """
    unknown = [name for name in _HOLE.findall(text) if name not in values]
    if unknown:
        known = ", ".join(sorted(values))
        raise ValueError(f"{{{unknown[0]}}} is no placeholder of a command; there are {known}")
    return fill(text, values)


def field_values(fields: "ProfileFields") -> dict[str, str]:
    """Placeholders of a profile's own plain fields, by their wire names."""
    said = fields.model_dump(by_alias=True, exclude_none=True)
    found = {key: value for key, value in said.items() if isinstance(value, str | int)}
    for group in ("parallelism", "kvCacheType"):
        inner = said.get(group) or {}
        found |= {f"{group}.{key}": value for key, value in inner.items()}
    return {key: str(value) for key, value in found.items()}


def launch_values(launch: Launch) -> dict[str, str]:
    """Placeholders that are known once the files have their paths."""
    said = {
        "model": launch.model,
        "name": launch.name,
        "host": launch.host,
        "port": str(launch.port),
        "projector": launch.projector or "",
        "draft": launch.draft or "",
        "revision": launch.revision,
    }
    return said | dict(launch.values)


def layered(layers: Sequence[Mapping[str, str]], values: Mapping[str, str]) -> dict[str, str]:
    """One environment out of layers, the lowest first, with placeholders filled in."""
    merged: dict[str, str] = {}
    for layer in layers:
        merged |= layer
    return {name: fill(value, values) for name, value in merged.items()}


def compose(traits: Traits, generated: Sequence[str], launch: Launch) -> list[str]:
    """The whole argument list.

    1. Without a template it is the runtime's own, then the literal arguments.
    2. With one: its words with placeholders filled in; then whatever the runtime would have passed and the
       template does not; then the literal arguments.
    3. Keys that are to be skipped leave all three.
    Raises ValueError on a placeholder that there is not.
    """
    values = launch_values(launch)
    args = [fill(word, values) for word in launch.args]
    if not launch.template:
        return [*_stripped(traits, generated, launch), *_stripped(traits, args, launch)]
    own = [fill_template(word, values) for word in launch.template]
    said = {one.key for one in read_flags(traits.flags, [*own, *args]) if one.key}
    rest = read_flags(traits.flags, generated)
    missing = [w for one in rest if one.name and one.key not in said for w in one.words]
    words = [*own, *missing, *args]
    return _stripped(traits, words, launch)


def _stripped(traits: Traits, words: Sequence[str], launch: Launch) -> list[str]:
    return strip_flags(traits.flags, words, launch.skip) if launch.skip else list(words)


def priced_words(fields: "ProfileFields") -> list[str]:
    """The literal words that a price depends on: the template's, then the arguments; fields filled in.

    What is not known before the launch (paths, addresses) moves no byte and stands for itself.
    """
    unknown = dict.fromkeys(
        ("model", "name", "host", "port", "projector", "draft", "revision"), "-"
    )
    values = {**unknown, **field_values(fields)}
    own = [fill_template(word, values) for word in (fields.command or ())[1:]]
    return [*own, *(fill(word, values) for word in fields.args or ())]
