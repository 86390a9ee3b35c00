"""What do a Demand and a Runner look like when the controller creates them?"""

from berth.api.meta import API_VERSION
from berth.api.model import Model
from berth.api.runner import RunnerSpec
from berth.manifests.names import Object, model_labels, owner_reference


def demand(model: Model) -> Object:
    """The Demand of a Model: same name, owned by it. Gateways write its status alone."""
    return _owned_by(model, kind="Demand", name=model.metadata.name) | {"spec": {}}


def runner(model: Model, spec: RunnerSpec, *, name: str) -> Object:
    """A Runner of a Model: its creation is the reservation."""
    return _owned_by(model, kind="Runner", name=name) | {"spec": spec.wire()}


def _owned_by(model: Model, *, kind: str, name: str) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": model.metadata.namespace,
            "labels": model_labels(model.metadata.name),
            "ownerReferences": [owner_reference(model)],
        },
    }
