"""Where does each setting come from? Layers of settings, the lowest first, merged field by field.

runtime < cluster < hardware < profile < model; a literal flag in the arguments hides the field that it sets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from berth.api.model import Model
from berth.api.profile import Profile, ProfileFields
from berth.runtimes.base import Traits
from berth.runtimes.flags import read_flags


@dataclass(frozen=True)
class Layer:
    """One layer: who says it, and fields by their wire names."""

    origin: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Settled:
    """The settings in force, and by dotted wire name who said each."""

    fields: ProfileFields
    origins: Mapping[str, str]


def layer_of(origin: str, fields: ProfileFields | None) -> Layer:
    """What somebody set; nothing where there is nobody."""
    said = fields.model_dump(by_alias=True, exclude_unset=True, exclude_none=True) if fields else {}
    return Layer(origin, said)


def base_layers(traits: Traits, hardware: str, context: int) -> list[Layer]:
    """What holds where no user says: the runtime, the cluster, the hardware."""
    return [
        Layer(f"runtime {traits.name}", traits.defaults),
        Layer("cluster", {"contextLength": context}),
        Layer(f"hardware {hardware}", traits.hardware_defaults.get(hardware, {})),
    ]


def user_layers(model: Model, profile: Profile | None) -> list[Layer]:
    """What users wrote: the Profile, the Model's overrides over it."""
    name = f"profile {profile.metadata.name}" if profile else "profile"
    own = layer_of(f"model {model.metadata.name}", model.spec.overrides)
    return [layer_of(name, profile.spec if profile else None), own]


def settle(layers: Sequence[Layer]) -> Settled:
    """The layers as one. Objects merge field by field, variables by name; any other list is taken whole."""
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        merged = _merge(merged, layer.values, origins, (layer.origin, ""))
    return Settled(ProfileFields.model_validate(merged), origins)


def _merge(
    below: Mapping[str, Any],
    above: Mapping[str, Any],
    origins: dict[str, str],
    who: tuple[str, str],
) -> dict[str, Any]:
    merged = dict(below)
    origin, prefix = who
    for key, value in above.items():
        name, known = f"{prefix}{key}", merged.get(key)
        if key == "env":
            merged[key] = _by_name(known or [], value, origins, origin)
        elif isinstance(value, dict):
            under = known if isinstance(known, dict) else {}
            merged[key] = _merge(under, value, origins, (origin, f"{name}."))
        else:
            merged[key] = value
            origins[name] = origin
    return merged


def _by_name(
    below: list[Any], above: list[Any], origins: dict[str, str], origin: str
) -> list[dict[str, str]]:
    """Variables by name: a layer adds to those below it, and takes the place of its namesakes."""
    origins |= {f"env.{one['name']}": origin for one in above}
    merged = {one["name"]: one for one in below} | {one["name"]: one for one in above}
    return list(merged.values())


@dataclass(frozen=True)
class Said:
    """One setting in force, for people: its dotted name, its value, and who said it."""

    name: str
    value: str
    origin: str


def told(settled: Settled, traits: Traits) -> list[Said]:
    """Every setting in force with its origin; literal flags last, with what they hide."""
    flat = _flat(settled.fields.model_dump(by_alias=True, exclude_unset=True, exclude_none=True))
    rows = [Said(name, value, settled.origins.get(name, "")) for name, value in flat.items()]
    literal = []
    for part in ("command", "args"):
        words = getattr(settled.fields, part) or []
        for one in read_flags(traits.flags, words[1:] if part == "command" else words):
            if one.name:
                who = f"{part} of {settled.origins.get(part, '')}"
                hides = f", over {one.key}" if one.key in flat else ""
                literal.append(Said(one.name, " ".join(one.words[1:]), f"{who}{hides}"))
    return sorted(rows, key=lambda row: row.name) + literal


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if key == "env":
            found |= {f"env.{one['name']}": one["value"] for one in value}
        elif isinstance(value, dict):
            found |= _flat(value, f"{name}.")
        else:
            found[name] = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return found
