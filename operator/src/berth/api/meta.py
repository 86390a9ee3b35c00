"""What do all Berth objects share: metadata, references, conditions, field types?"""

from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from berth.units import DURATION_PATTERN, QUANTITY_PATTERN, Bytes, parse_duration, parse_quantity

GROUP = "berth.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

LABEL_MODEL = f"{GROUP}/model"
LABEL_RUNNER = f"{GROUP}/runner"
LABEL_RUNNER_UID = f"{GROUP}/runner-uid"
LABEL_INSPECTS = f"{GROUP}/inspects"
"""On a pod that looks at the files of a claim: its Model. Never with LABEL_MODEL: it is no runner."""
LABEL_MANAGED = "app.kubernetes.io/managed-by"
ANNOTATION_CLAIM = f"{GROUP}/claim"
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
ANNOTATION_SOURCE_HASH = f"{GROUP}/source-hash"
ANNOTATION_LOAD = f"{GROUP}/load-requested"
"""Load by hand: any new value (the CLI writes the time) asks for the model once."""
ANNOTATION_UNLOAD = f"{GROUP}/unload-requested"
"""Unload by hand: any new value asks for every runner of the model to be drained and deleted."""
ANNOTATION_KILL = f"{GROUP}/kill-requested"
"""On a Runner: any new value kills its pod at once, which counts as a crash."""

INT_OR_STRING = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}

Name = Annotated[str, Field(max_length=253)]
Short = Annotated[str, Field(max_length=253)]
Text = Annotated[str, Field(max_length=1024)]
Long = Annotated[str, Field(max_length=4096)]
Time = Annotated[str, Field(max_length=64)]
"""RFC 3339 in UTC. Clocks of other machines are shown, never compared with ours."""

Count = Annotated[int, Field(ge=0, le=1_000_000)]
ByteCount = Annotated[int, Field(ge=0, le=1 << 56)]
"""Bytes as a JSON integer (statuses and claims)."""

Quantity = Annotated[
    str,
    BeforeValidator(str),
    Field(
        max_length=32,
        pattern=QUANTITY_PATTERN,
        json_schema_extra={**INT_OR_STRING, "pattern": QUANTITY_PATTERN},
    ),
]
Duration = Annotated[
    str,
    BeforeValidator(lambda v: f"{v}s" if isinstance(v, int) and v else str(v)),
    Field(
        max_length=32,
        pattern=DURATION_PATTERN,
        json_schema_extra={**INT_OR_STRING, "pattern": DURATION_PATTERN},
    ),
]
"""A span of time; a bare integer is seconds, 0 means what the field says it means."""

Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]


def bytes_of(quantity: str) -> Bytes:
    """Bytes of a validated Quantity field."""
    return parse_quantity(quantity)


def seconds_of(duration: str) -> float:
    """Seconds of a validated Duration field."""
    return parse_duration(duration)


def timestamp(moment: float) -> str:
    """RFC 3339 with microseconds for seconds since the epoch."""
    return (
        datetime.fromtimestamp(moment, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def moment_of(stamp: str) -> float:
    """Seconds since the epoch of an RFC 3339 stamp; raises ValueError on anything else."""
    return datetime.fromisoformat(stamp).timestamp()


def moment_or_none(stamp: str | None) -> float | None:
    """The same; None for nothing, and for what is no stamp: others write statuses, too."""
    try:
        return moment_of(stamp) if stamp else None
    except ValueError:
        return None


class Wire(BaseModel):
    """Base of every API type: camelCase on the wire; fields of a newer release are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        # `kubectl explain` shows what the code says.
        use_attribute_docstrings=True,
    )

    def wire(self) -> dict[str, Any]:
        """The JSON form, without fields that are unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class OwnerReference(Wire):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Wire):
    """The metadata that Berth reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class Toleration(Wire):
    key: Short | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Short | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class EnvVar(Wire):
    name: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Annotated[str, Field(max_length=4096)] = ""


class SecretKeyRef(Wire):
    """A key of a Secret in the object's own namespace."""

    name: Name
    key: Annotated[str, Field(max_length=253)] = "token"


class Condition(Wire):
    """A Kubernetes condition; ``reason`` is an enum member's value, ``message`` one sentence."""

    type: Annotated[str, Field(max_length=64)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(max_length=64)]
    message: Text = ""
    observed_generation: int | None = None
    last_transition_time: Time = ""


Conditions = Annotated[
    list[Condition],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


class Resource(Wire):
    """A whole object. Subclasses narrow ``spec`` and ``status``."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @cached_property
    def key(self) -> str:
        """``namespace/name``, or the name of a cluster-scoped object."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
