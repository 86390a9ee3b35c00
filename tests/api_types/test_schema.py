"""Is every field of every CRD bounded, structural and free of floats?"""

import json
from pathlib import Path

import pytest
import yaml

from berth.api.crd import custom_resource_definition
from berth.api.kinds import KINDS

ROOT = Path(__file__).parents[2]
LARGEST = 256 << 10
"""Any object stays below this many bytes as JSON."""


def schema_of(info):
    return custom_resource_definition(info)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def fields(node, path=""):
    """Every node of a schema with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from fields(child, f"{path}.{name}")
    if isinstance(node.get("items"), dict):
        yield from fields(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from fields(node["additionalProperties"], f"{path}{{}}")


def own_fields(info):
    schema = schema_of(info)
    for part in ("spec", "status"):
        yield from fields(schema["properties"][part], f"{info.kind}.{part}")


EVERY = [pytest.param(path, node, id=path) for info in KINDS for path, node in own_fields(info)]


def is_bounded(node):
    if node.get("x-kubernetes-int-or-string"):
        return "maxLength" in node
    match node.get("type"):
        case "string":
            return "maxLength" in node or "enum" in node
        case "array":
            return "maxItems" in node
        case "object" if "additionalProperties" in node:
            return "maxProperties" in node
        case "object":
            return "properties" in node or node.get("x-kubernetes-preserve-unknown-fields", False)
        case kind:
            return kind in ("integer", "boolean")


@pytest.mark.parametrize(("path", "node"), EVERY)
def test_every_field_is_bounded_and_structural(path, node):
    assert is_bounded(node), f"{path} has no maximum: {node}"
    forbidden = {"oneOf", "allOf", "not", "$ref", "const", "title"}
    assert not forbidden & set(node)
    assert "anyOf" not in node or node.get("x-kubernetes-int-or-string")


def test_only_a_profiles_affinity_is_taken_as_it_is():
    free = [p.values[0] for p in EVERY if "x-kubernetes-preserve-unknown-fields" in p.values[1]]
    assert sorted(free) == [
        "Model.spec.overrides.podTemplate.affinity",
        "Profile.spec.podTemplate.affinity",
        "Runner.spec.podTemplate.affinity",
    ]


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_nothing_of_a_status_is_required_or_defaulted(info):
    """One writer's partial apply must not own what another writes."""
    for path, node in fields(schema_of(info)["properties"]["status"], "status"):
        keys = node.get("x-kubernetes-list-map-keys")
        assert "default" not in node, path
        if keys:
            assert node["items"]["required"] == sorted(keys), path
        elif not path.endswith("[]"):
            assert "required" not in node, path


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_the_committed_crd_is_the_types(info):
    for folder in ("crds", "charts/berth/crds"):
        text = (ROOT / folder / f"{info.plural}.yaml").read_text()
        assert yaml.safe_load(text) == custom_resource_definition(info), "run `make gen`"


def largest_usual(node):
    """Bytes of a value as large as programs make one: lists that are full, texts of 64 bytes."""
    kind = node.get("type")
    if kind == "string" or node.get("x-kubernetes-int-or-string"):
        return min(node.get("maxLength", 32), 64) + 2
    if kind in ("integer", "boolean"):
        return 12
    if kind == "array":
        # Facts of whole models hold one another's place: their writer ends before the bound.
        count = 1 if "facts" in node["items"].get("properties", {}) else node["maxItems"]
        return count * largest_usual(node["items"])
    if "additionalProperties" in node:
        return node["maxProperties"] * (largest_usual(node["additionalProperties"]) + 66)
    children = node.get("properties", {})
    return sum(len(json.dumps(name)) + 1 + largest_usual(child) for name, child in children.items())


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_no_object_of_usual_texts_passes_the_bound(info):
    assert largest_usual(schema_of(info)["properties"]["status"]) < LARGEST
