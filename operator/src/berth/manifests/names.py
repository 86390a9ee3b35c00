"""How are Berth's objects named, labelled and owned?

Names are a function of what the object is for, so that two controllers that want the same object
make the same name and the second create is refused (docs/design/0001).
"""

import hashlib
from typing import Any

from berth.api.meta import API_VERSION, LABEL_MANAGED, LABEL_MODEL, Resource

MANAGED_BY = "berth"
_LABEL_LIMIT = 63
_STEM_LIMIT = 40
Object = dict[str, Any]


def runner_name(namespace: str, model: str, *, ordinal: int, attempt: int) -> str:
    """``MODEL[≤40]-HASH-ORDINAL-ATTEMPT``; at most 63 characters, as a host name may have."""
    digest = _digest(f"{namespace}/{model}")
    # A dot is fine in an object's name but not in a pod's host name.
    stem = model[:_STEM_LIMIT].replace(".", "-").rstrip("-")
    return f"{stem}-{digest}-{ordinal}-{attempt}"


def member_name(head: str, rank: int) -> str:
    """Name of a group's Runner and pod: rank 0 has the head's own, the others ``HEAD-rRANK``."""
    return f"{head}-r{rank}" if rank else head


def inspect_name(namespace: str, model: str, source_hash: str) -> str:
    """``MODEL[≤36]-HASH-inspect-SOURCE``: one pod for each source that a Model ever names."""
    digest = _digest(f"{namespace}/{model}")
    stem = model[:36].replace(".", "-").rstrip("-")
    return f"{stem}-{digest}-inspect-{source_hash[:8]}"


def model_label(model: str) -> str:
    """A Model's name as a label value: itself, or its start and a hash where it is too long."""
    if len(model) <= _LABEL_LIMIT:
        return model
    return f"{model[: _LABEL_LIMIT - 9]}-{_digest(model)}"


def model_labels(model: str) -> dict[str, str]:
    """The labels of everything that exists for one Model."""
    return {LABEL_MANAGED: MANAGED_BY, LABEL_MODEL: model_label(model)}


def model_selector(model: str) -> str:
    """The label selector of a Model's pods, as the scale subresource shows it."""
    return ",".join(f"{key}={value}" for key, value in sorted(model_labels(model).items()))


def owner_reference(owner: Resource) -> Object:
    """The reference by which garbage collection frees what ``owner`` held.

    Never with ``blockOwnerDeletion``: nothing of Berth's may hold up the deletion of its owner.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": owner.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
