"""Which settings did a Model's users write, and which change of them replaces a runner?"""

import hashlib
import json

from berth.api.model import Model
from berth.api.profile import Profile, ProfileFields
from berth.controller.chain import settle, user_layers

_NOT_LAUNCHED = ("drain", "loadTimeout", "hangTimeout", "readiness", "smokeTest", "keepWarm")
"""Fields that change nothing about an engine that runs: no runner is replaced for them."""


def resolve(model: Model, profile: Profile | None) -> ProfileFields:
    """What users wrote, the Model's overrides over its Profile. The cluster's own defaults come
    below and are not in it: a release that changes one restarts no runner."""
    return settle(user_layers(model, profile)).fields


def settings_hash(model: Model, fields: ProfileFields, digest: str) -> str:
    """16 hex digits over everything whose change replaces a runner: settings, files and id."""
    launched = fields.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    for name in _NOT_LAUNCHED:
        launched.pop(name, None)
    if "env" in launched:
        # Variables have names: their order means nothing.
        launched["env"] = {one["name"]: one.get("value", "") for one in launched["env"]}
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
