"""Which pod looks at the files of a claim, for the facts that only a pod can see?

It lives for seconds in the Model's namespace, has no right and no token, and passes Pod Security's
``restricted``. Its termination message is the answer (`berth.headers.report`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from berth.api.meta import (
    ANNOTATION_SOURCE_HASH,
    ANNOTATION_SPEC_HASH,
    LABEL_INSPECTS,
    LABEL_MANAGED,
)
from berth.api.model import Model
from berth.api.profile import PodTemplate
from berth.manifests.names import MANAGED_BY, Object, inspect_name, model_label, owner_reference
from berth.manifests.pod import MODELS_PATH, spec_hash

CONTAINER = "inspect"
DEADLINE_S = 180
"""From the moment that a node has taken the pod in: image, mount and reading."""
_USER = 65532
_RESOURCES = {
    "requests": {"cpu": "50m", "memory": "128Mi"},
    # The child that reads may take 512 MiB of address space.
    "limits": {"memory": "640Mi"},
}


@dataclass(frozen=True)
class Inspection:
    """What is to be looked at. ``paths`` by part, below the root of the claim."""

    claim: str
    paths: Mapping[str, str]
    source_hash: str
    image: str
    nodes: tuple[str, ...] = ()
    """Where alone the claim can be mounted; empty: the scheduler knows."""
    template: PodTemplate | None = None
    """Of the profile: its tolerations and pull secrets count here too."""


def inspect_pod(model: Model, asked: Inspection) -> Object:
    """The pod, owned by its Model. Same question, same name."""
    meta, spec = model.metadata, _spec(model, asked)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": inspect_name(meta.namespace, meta.name, asked.source_hash),
            "namespace": meta.namespace,
            "labels": {LABEL_MANAGED: MANAGED_BY, LABEL_INSPECTS: model_label(meta.name)},
            "annotations": {
                ANNOTATION_SOURCE_HASH: asked.source_hash,
                ANNOTATION_SPEC_HASH: spec_hash(spec),
            },
            "ownerReferences": [owner_reference(model)],
        },
        "spec": spec,
    }


def _spec(model: Model, asked: Inspection) -> Object:
    template = asked.template or PodTemplate()
    placement = {
        "nodeSelector": dict(model.spec.node_selector),
        "tolerations": [t.wire() for t in (*model.spec.tolerations, *template.tolerations)],
        "imagePullSecrets": [{"name": name} for name in template.image_pull_secrets],
        "affinity": _affinity(asked.nodes),
    }
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_S,
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(asked)],
        "volumes": [
            {
                "name": "models",
                "persistentVolumeClaim": {"claimName": asked.claim, "readOnly": True},
            }
        ],
    } | {name: value for name, value in placement.items() if value}


def _container(asked: Inspection) -> Object:
    return {
        "name": CONTAINER,
        "image": asked.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "berth.headers.inspect", *_arguments(asked.paths)],
        "resources": _RESOURCES,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "models", "mountPath": MODELS_PATH, "readOnly": True}],
    }


def _arguments(paths: Mapping[str, str]) -> Iterable[str]:
    for name, path in paths.items():
        # Kubernetes expands $(NAME) in commands; a doubled sign stands for itself.
        yield f"{name}={MODELS_PATH}/{path}".replace("$", "$$")


def _affinity(nodes: tuple[str, ...]) -> Object:
    if not nodes:
        return {}
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        for node in nodes
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}
