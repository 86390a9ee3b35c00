"""How do the pydantic types become CustomResourceDefinitions?

Pydantic prints JSON Schema 2020-12; Kubernetes wants a structural OpenAPI v3 schema: references
inlined, no ``anyOf`` with null, ``const`` as ``enum``, no titles.
"""

from pathlib import Path
from typing import Any

import yaml

from berth.api.kinds import KINDS, Column, KindInfo
from berth.api.meta import GROUP, VERSION

_KEEP = {
    "type", "properties", "required", "items", "enum", "pattern", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "default", "description",
    "additionalProperties",
}  # fmt: skip
Schema = dict[str, Any]


def custom_resource_definition(info: KindInfo) -> Schema:
    """The CRD of one kind as a dict."""
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root_schema(info)},
        "subresources": {"status": {}, **({"scale": info.scale} if info.scale else {})},
        "additionalPrinterColumns": [_column(column) for column in info.columns],
    }
    names: Schema = {
        "kind": info.kind,
        "listKind": f"{info.kind}List",
        "plural": info.plural,
        "singular": info.kind.lower(),
        "categories": ["berth"],
    }
    if info.short_names:
        names["shortNames"] = list(info.short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{info.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced" if info.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _column(column: Column) -> Schema:
    entry: Schema = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return entry | ({"priority": column.priority} if column.priority else {})


def _root_schema(info: KindInfo) -> Schema:
    whole = info.cls.model_json_schema(by_alias=True, mode="validation")
    definitions = whole.get("$defs", {})
    spec = _structural(whole["properties"]["spec"], definitions)
    status = _structural(whole["properties"]["status"], definitions)
    spec.pop("default", None)
    status.pop("default", None)
    required = ["spec"] if "spec" in whole.get("required", []) else []
    # A status is written by programs in parts: nothing in it may be required or defaulted,
    # or one writer's partial apply would own what another writes.
    schema: Schema = {
        "type": "object",
        "description": (info.cls.__doc__ or info.cls.__module__).strip(),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _without_defaults(status),
        },
    }
    if required:
        schema["required"] = required
    return schema


def _structural(node: Schema, definitions: Schema) -> Schema:
    """One schema node with references inlined and only what Kubernetes knows kept."""
    node = dict(node)
    while "$ref" in node:
        target = definitions[node.pop("$ref").rsplit("/", 1)[1]]
        node = {**target, **node}
    if node.get("x-kubernetes-int-or-string"):
        return _int_or_string(node)
    for option in node.get("anyOf", []):
        if option.get("type") != "null":
            rest = {k: v for k, v in node.items() if k not in ("anyOf", "default")}
            return _structural({**option, **rest}, definitions)
    out = {
        key: value for key, value in node.items() if key in _KEEP or key.startswith("x-kubernetes-")
    }
    if "const" in node:
        out["enum"] = [node["const"]]
        out.setdefault("type", "string")
    return _with_children(out, node, definitions)


def _int_or_string(node: Schema) -> Schema:
    union: Schema = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
    }
    kept = ("pattern", "maxLength", "default", "description")
    return union | {key: node[key] for key in kept if key in node}


def _with_children(out: Schema, node: Schema, definitions: Schema) -> Schema:
    if "properties" in node:
        out["properties"] = {
            name: _structural(child, definitions) for name, child in node["properties"].items()
        }
    if isinstance(node.get("items"), dict):
        out["items"] = _structural(node["items"], definitions)
    if isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    elif "additionalProperties" in out:
        # Extra fields are pruned by the API server; spelling it out is not structural.
        del out["additionalProperties"]
    if out.get("x-kubernetes-preserve-unknown-fields"):
        out.pop("additionalProperties", None)
    if isinstance(out.get("default"), dict) or out.get("default") in ([], None):
        # The defaults of an object's own fields say the same, once.
        out.pop("default", None)
    return out


def _without_defaults(node: Schema) -> Schema:
    """A status node with nothing required (but list map keys) and nothing defaulted."""
    out = {k: v for k, v in node.items() if k != "default"}
    keys = out.get("x-kubernetes-list-map-keys")
    if "properties" in out:
        out["properties"] = {k: _without_defaults(v) for k, v in out["properties"].items()}
        out.pop("required", None)
    if isinstance(out.get("items"), dict):
        out["items"] = _without_defaults(out["items"])
        if keys:
            out["items"]["required"] = sorted(keys)
    return out


def write_crds(folder: Path) -> None:
    """Write ``crds/<plural>.yaml`` for every kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for info in KINDS:
        text = yaml.safe_dump(custom_resource_definition(info), sort_keys=False, width=100)
        (folder / f"{info.plural}.yaml").write_text(
            f"# Generated by `make gen` from berth.api.\n{text}"
        )
