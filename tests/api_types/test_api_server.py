"""Does a real API server take the CRDs without a warning, good objects whole, and no bad one?"""

import json
import subprocess
from pathlib import Path

import pytest

from berth.api.kinds import BY_CLASS
from berth.api.model import Model
from docs.pages import objects

pytestmark = pytest.mark.api
ROOT = Path(__file__).parents[2]
URL = {"url": {"uri": "https://example.org/m.gguf"}}


def obj(kind, spec, name="x"):
    body = {"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
    return body | {"spec": spec}


def model(**spec):
    return obj("Model", {"source": URL, **spec})


def stored(plane, body):
    """What the API server would keep of it, defaults included."""
    text = plane.kubectl(
        "apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body)
    )
    return json.loads(text)["spec"]


def refusal(plane, body):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        stored(plane, body)
    return caught.value.stderr


def test_crds_are_accepted_without_a_warning(plane):
    answer = plane.kubectl(
        "apply",
        "--server-side",
        "--dry-run=server",
        "--warnings-as-errors",
        "-f",
        str(ROOT / "crds"),
    )
    assert answer.count("serverside-applied") == len(BY_CLASS)
    for crd in json.loads(plane.kubectl("get", "crd", "-o", "json"))["items"]:
        conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
        assert conditions["Established"] == "True", crd["metadata"]["name"]
        assert "NonStructuralSchema" not in conditions


GOOD = [
    pytest.param(model(), id="a Model of a URL"),
    pytest.param(model(idleTimeout=0), id="idleTimeout: 0 as a number"),
    pytest.param(model(idleTimeout="0"), id="idleTimeout: 0 as text"),
    pytest.param(model(idleTimeout="1h30m"), id="idleTimeout as Go writes it"),
    pytest.param(model(residency="Pinned", pinTo=["node-a"]), id="pinned to a node"),
    pytest.param(model(device="cuda:1"), id="a device by index"),
    pytest.param(
        obj("Model", {"source": {"huggingFace": {"repo": "org/name", "files": ["a/m.gguf"]}}}),
        id="a Hugging Face repository",
    ),
    pytest.param(
        obj("Model", {"source": {"path": {"hostPath": "/data", "path": "m.gguf"}}}),
        id="a host path",
    ),
    pytest.param(
        obj("Profile", {"contextLength": 8192, "cacheRam": 1073741824}), id="a quantity as a number"
    ),
    pytest.param(obj("Profile", {"memory": {"peak": "40Gi"}}), id="a quantity as text"),
    pytest.param(obj("Residency", {}), id="a Residency of defaults"),
    pytest.param(
        obj("Hold", {"nodes": ["a"], "budget": 600}), id="a Hold with a budget in seconds"
    ),
]


def is_within(want, got):
    """Every field that was written is there with its value; defaults may stand beside it."""
    if isinstance(want, dict):
        return all(name in got and is_within(value, got[name]) for name, value in want.items())
    return want == got


@pytest.mark.parametrize("body", GOOD)
def test_good_objects_are_kept_as_they_were_written(plane, body):
    assert is_within(body["spec"], stored(plane, body))


def test_fields_that_the_cluster_decides_get_no_default(plane):
    assert not {"idleTimeout", "device"} & set(stored(plane, model()))


BAD = [
    pytest.param(
        obj("Model", {"source": {}}),
        "source needs exactly one of huggingFace, url, path, image",
        id="no source",
    ),
    pytest.param(
        obj("Model", {"source": {**URL, "image": {"reference": "x"}}}),
        "source needs exactly one of huggingFace, url, path, image",
        id="two sources",
    ),
    pytest.param(obj("Model", {}), "spec.source: Required value", id="source left out"),
    pytest.param(model(pinTo=["a"]), "pinTo needs residency: Pinned", id="pinTo without Pinned"),
    pytest.param(
        obj("Model", {"source": {"path": {"path": "m.gguf"}}}),
        "exactly one of persistentVolumeClaim and hostPath says where the path lives",
        id="a path in nowhere",
    ),
    pytest.param(
        obj("Model", {"source": {"path": {"hostPath": "/d", "path": "../etc/shadow"}}}),
        "path must not contain '..'",
        id="a path that climbs out",
    ),
    pytest.param(model(device="gpu"), "spec.device", id="a device of no known form"),
    pytest.param(model(idleTimeout="soon"), "spec.idleTimeout", id="a duration that is none"),
    pytest.param(model(maxReplicas=0), "spec.maxReplicas", id="no replica at all"),
    pytest.param(model(residency="Always"), 'Unsupported value: "Always"', id="no such residency"),
    pytest.param(
        obj("Profile", {"contextLength": 9000, "maxContextLength": 8000}),
        "contextLength is above maxContextLength",
        id="a context above its own window",
    ),
    pytest.param(
        model(overrides={"contextLength": 9000, "maxContextLength": 8000}),
        "contextLength is above maxContextLength",
        id="the same in a Model's overrides",
    ),
    pytest.param(
        obj("Profile", {"cacheRam": "much"}), "spec.cacheRam", id="a quantity that is none"
    ),
    pytest.param(
        obj("Hold", {"reason": "maintenance"}),
        "a hold names its nodes, by nodes or nodeSelector",
        id="a hold of nothing",
    ),
]


@pytest.mark.parametrize(("body", "message"), BAD)
def test_bad_objects_are_refused_with_what_is_wrong(plane, body, message):
    assert message in refusal(plane, body)


def test_scale_sets_min_replicas_and_reads_the_status(plane):
    plane.apply(model() | {"metadata": {"name": "scaled", "namespace": "default"}})
    plane.kubectl("scale", "models/scaled", "--replicas=2")
    assert (
        json.loads(plane.kubectl("get", "model", "scaled", "-o", "json"))["spec"]["minReplicas"]
        == 2
    )
    status = {"status": {"replicas": 1, "selector": "berth.dev/model=scaled"}}
    plane.kubectl(
        "patch",
        "model",
        "scaled",
        "--subresource=status",
        "--type=merge",
        f"-p={json.dumps(status)}",
    )
    scale = json.loads(
        plane.kubectl(
            "get", "--raw", "/apis/berth.dev/v1alpha1/namespaces/default/models/scaled/scale"
        )
    )
    assert (scale["spec"], scale["status"]) == (
        {"replicas": 2},
        {"replicas": 1, "selector": "berth.dev/model=scaled"},
    )


def test_a_manifest_without_min_replicas_leaves_scaling_alone(plane):
    """GitOps applies the manifest again and again; what HPA or a person scaled stays."""
    body = model() | {"metadata": {"name": "gitops", "namespace": "default"}}
    plane.apply(body)
    plane.kubectl("scale", "models/gitops", "--replicas=3")
    plane.apply(body)
    kept = json.loads(plane.kubectl("get", "model", "gitops", "-o", "json"))["spec"]
    assert kept["minReplicas"] == 3


def test_every_column_is_there(plane):
    plane.apply(model() | {"metadata": {"name": "columns", "namespace": "default"}})
    header = plane.kubectl("get", "models", "-o", "wide").splitlines()[0].split()
    assert header[:3] == ["NAME", "STATE", "RUNNERS"]
    for plural in ("profiles", "residencies", "runners", "holds", "nodeinventories", "demands"):
        plane.kubectl("get", plural)


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in objects()])
def test_every_example_is_accepted(plane, body):
    stored(plane, body)


def test_what_the_server_keeps_is_what_the_types_read(plane):
    plane.apply(model(idleTimeout=90) | {"metadata": {"name": "typed", "namespace": "default"}})
    kept = json.loads(plane.kubectl("get", "model", "typed", "-o", "json"))
    assert Model.model_validate(kept).spec.idle_timeout == "90s"
