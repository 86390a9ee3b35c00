"""Which settings does a Model run with? Runtime < hardware < profile < model, merged field by field."""

import hashlib
import json
from typing import Any

from berth.api.model import Model
from berth.api.profile import Profile, ProfileFields

_NOT_LAUNCHED = ("drain", "loadTimeout", "hangTimeout", "readiness", "smokeTest", "keepWarm")
"""Fields that change nothing about an engine that runs: no runner is replaced for them."""


def resolve(model: Model, profile: Profile | None) -> ProfileFields:
    """What users wrote, the Model's overrides over its Profile. The cluster's own defaults come
    below and are not in it: a release that changes one restarts no runner."""
    layers = [
        profile.spec.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
        if profile
        else {},
        model.spec.overrides.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
        if model.spec.overrides
        else {},
    ]
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merge(merged, layer)
    return ProfileFields.model_validate(merged)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Objects field by field; everything else, lists too, as a whole."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = _merge(known, value) if both and isinstance(known, dict) else value
    return merged


def settings_hash(model: Model, fields: ProfileFields, digest: str) -> str:
    """16 hex digits over everything whose change replaces a runner: settings, files and id."""
    launched = fields.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    for name in _NOT_LAUNCHED:
        launched.pop(name, None)
    said = {
        "fields": launched,
        "digest": digest,
        "id": model.served_id,
        "device": model.spec.device,
        "nodeSelector": model.spec.node_selector,
    }
    return digest_of(said)


def source_hash(model: Model) -> str:
    """16 hex digits over everything that decides which files are meant."""
    spec = model.spec
    said = {
        "source": spec.source.wire(),
        "projector": spec.projector.wire() if spec.projector else None,
        "draft": spec.draft.wire() if spec.draft else None,
        "adapters": [adapter.wire() for adapter in spec.adapters],
    }
    return digest_of(said)


def digest_of(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
