"""Which Model does an id belong to? The elder one; the younger is told."""

from collections.abc import Iterable
from dataclasses import dataclass

from berth.api.model import Model


@dataclass(frozen=True)
class SharedId:
    """An id of a Model that an elder Model holds."""

    id: str
    holder: str
    """Key of the elder Model."""


def shared_ids(models: Iterable[Model]) -> dict[str, SharedId]:
    """By key, the Models of which an id or alias belongs to an elder one: the first such id.

    Elder is who was created first; of two of the same second, the lower uid.
    """
    holders: dict[str, str] = {}
    found: dict[str, SharedId] = {}
    for model in sorted(models, key=_age):
        for name in (model.served_id, *model.spec.aliases):
            holder = holders.setdefault(name, model.key)
            if holder != model.key:
                found.setdefault(model.key, SharedId(name, holder))
    return found


def _age(model: Model) -> tuple[str, str]:
    return model.metadata.creation_timestamp, model.metadata.uid
