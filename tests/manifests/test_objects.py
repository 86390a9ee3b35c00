"""Are names, labels and owners a function of what the object is for?"""

import hashlib

import pytest

from berth.api.model import Model
from berth.api.runner import RunnerSpec
from berth.manifests.names import model_label, model_selector, runner_name
from berth.manifests.objects import demand, runner

MODEL = Model.model_validate(
    {
        "metadata": {"name": "gemma", "namespace": "team", "uid": "m-1"},
        "spec": {"source": {"url": {"uri": "https://example.org/m.gguf"}}},
    }
)
OWNER = {
    "apiVersion": "berth.dev/v1alpha1",
    "kind": "Model",
    "name": "gemma",
    "uid": "m-1",
    "controller": True,
}
META = {
    "namespace": "team",
    "labels": {"app.kubernetes.io/managed-by": "berth", "berth.dev/model": "gemma"},
    "ownerReferences": [OWNER],
}


def test_a_demand_is_its_models_and_says_nothing_yet():
    assert demand(MODEL) == {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Demand",
        "metadata": {"name": "gemma", **META},
        "spec": {},
    }


def test_a_runner_is_its_models():
    spec = RunnerSpec.model_validate({"modelRef": {"name": "gemma", "uid": "m-1"}, "nodeName": "a"})
    assert runner(MODEL, spec, name="gemma-0") == {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Runner",
        "metadata": {"name": "gemma-0", **META},
        "spec": spec.wire(),
    }


@pytest.mark.parametrize(
    ("model", "stem"),
    [
        pytest.param("gemma", "gemma", id="short"),
        pytest.param("a" * 253, "a" * 40, id="cut at 40"),
        pytest.param("qwen2.5-7b", "qwen2-5-7b", id="no dot in a host name"),
        pytest.param("a" * 39 + "-b", "a" * 39, id="no double dash"),
    ],
)
def test_a_runners_name_fits_a_host_name(model, stem):
    digest = hashlib.sha256(f"team/{model}".encode()).hexdigest()[:8]
    name = runner_name("team", model, ordinal=0, attempt=3)
    assert name == f"{stem}-{digest}-0-3"
    assert len(name) <= 63


def test_long_model_names_keep_labels_apart():
    first, second = model_label("a" * 100 + "x"), model_label("a" * 100 + "y")
    assert first != second
    assert max(len(first), len(second)) <= 63


def test_the_selector_finds_what_the_labels_say():
    assert model_selector("gemma") == "app.kubernetes.io/managed-by=berth,berth.dev/model=gemma"
