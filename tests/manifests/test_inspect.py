"""Is the pod that looks at a claim exactly what the design says?"""

import kubernetes_validate
import pytest

from berth.api.model import Model
from berth.api.profile import PodTemplate
from berth.manifests.inspect import Inspection, inspect_pod
from berth.manifests.names import inspect_name
from berth.manifests.pod import spec_hash


def model(**spec):
    source = {"path": {"persistentVolumeClaim": "weights", "path": "gemma/gemma.gguf"}}
    return Model.model_validate(
        {
            "metadata": {"name": "gemma", "namespace": "team", "uid": "m-1"},
            "spec": {"source": source, **spec},
        }
    )


ASKED = Inspection(
    claim="weights",
    paths={"weights": "gemma/gemma.gguf"},
    source_hash="0123456789abcdef",
    image="berth/operator:1",
)
SPEC = {
    "restartPolicy": "Never",
    "activeDeadlineSeconds": 180,
    "terminationGracePeriodSeconds": 5,
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "containers": [
        {
            "name": "inspect",
            "image": "berth/operator:1",
            "imagePullPolicy": "IfNotPresent",
            "command": [
                "python3",
                "-m",
                "berth.headers.inspect",
                "weights=/models/gemma/gemma.gguf",
            ],
            "resources": {
                "requests": {"cpu": "50m", "memory": "128Mi"},
                "limits": {"memory": "640Mi"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
            "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
        }
    ],
    "volumes": [
        {"name": "models", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    ],
}
# sha256("team/gemma") begins with these 8 digits.
NAME = "gemma-045c8def-inspect-01234567"


def test_the_whole_pod():
    assert inspect_pod(model(), ASKED) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": NAME,
            "namespace": "team",
            # No label of a model: it is none of its runners, and no autoscaler counts it as one.
            "labels": {
                "app.kubernetes.io/managed-by": "berth",
                "berth.dev/inspects": "gemma",
            },
            "annotations": {
                "berth.dev/source-hash": "0123456789abcdef",
                "berth.dev/spec-hash": spec_hash(SPEC),
            },
            "ownerReferences": [
                {
                    "apiVersion": "berth.dev/v1alpha1",
                    "kind": "Model",
                    "name": "gemma",
                    "uid": "m-1",
                    "controller": True,
                }
            ],
        },
        "spec": SPEC,
    }


def test_it_goes_where_the_model_and_its_profile_may():
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    template = PodTemplate.model_validate(
        {"tolerations": [{"key": "spot", "operator": "Exists"}], "imagePullSecrets": ["mirror"]}
    )
    asked = Inspection("weights", {"weights": "m"}, "0" * 16, "i", ("a",), template)
    pod = inspect_pod(model(nodeSelector={"zone": "x"}, tolerations=tolerations), asked)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    assert pod["spec"] | SPEC == SPEC | {
        "nodeSelector": {"zone": "x"},
        "tolerations": [*tolerations, {"key": "spot", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "mirror"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
            }
        },
    }
    kubernetes_validate.validate(pod, "1.37", strict=True)


def test_kubernetes_does_not_expand_what_a_path_looks_like():
    asked = Inspection("weights", {"weights": "a$(HOME)=b"}, "0" * 16, "i")
    command = inspect_pod(model(), asked)["spec"]["containers"][0]["command"]
    assert command[-1] == "weights=/models/a$$(HOME)=b"


@pytest.mark.parametrize("name", ["a", "a" * 253, "qwen2.5-7b", "a" * 35 + ".b"])
def test_its_name_is_one_and_fits_a_host_name(name):
    made = inspect_name("team", name, "0123456789abcdef")
    assert len(made) <= 63
    assert made == inspect_name("team", name, "0123456789abcdef")
    others = {inspect_name("other", name, "0123456789abcdef"), inspect_name("team", name, "f" * 16)}
    assert made not in others
    assert "." not in made
    assert "--" not in made
