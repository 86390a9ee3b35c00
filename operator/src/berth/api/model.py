"""Model: what is served."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from berth.api.meta import (
    ByteCount,
    Conditions,
    Count,
    Duration,
    Labels,
    Long,
    Name,
    Resource,
    SecretKeyRef,
    Short,
    Text,
    Time,
    Toleration,
    Wire,
)
from berth.api.profile import ProfileFields
from berth.facts import Facts

DEVICE_PATTERN = (
    r"^(auto|cpu|cuda|cuda:[0-9]{1,3}|GPU-[0-9a-fA-F-]{8,64}|MIG-[0-9A-Za-z/-]{8,128})$"
)
FileName = Annotated[str, Field(max_length=512, pattern=r"^[^/\s][^\s]*$")]


class HuggingFaceSource(Wire):
    repo: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$")]
    revision: Annotated[str, Field(max_length=128)] = "main"
    files: Annotated[list[FileName], Field(max_length=128)] = []
    token_secret_ref: SecretKeyRef | None = None


class UrlSource(Wire):
    uri: Annotated[str, Field(max_length=2048, pattern=r"^https?://")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)] | None = None


class PathSource(Wire):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "has(self.persistentVolumeClaim) != has(self.hostPath)",
                    "message": "exactly one of persistentVolumeClaim and hostPath says where the path lives",
                },
                {"rule": "!self.path.contains('..')", "message": "path must not contain '..'"},
            ]
        }
    )
    persistent_volume_claim: Name | None = None
    host_path: Annotated[str, Field(max_length=1024, pattern=r"^/")] | None = None
    path: Annotated[str, Field(max_length=1024, min_length=1)]


class ImageSource(Wire):
    reference: Annotated[str, Field(max_length=512)]


class Source(Wire):
    """Exactly one of the four."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "[has(self.huggingFace), has(self.url), has(self.path), has(self.image)]"
                    ".filter(x, x).size() == 1",
                    "message": "source needs exactly one of huggingFace, url, path, image",
                }
            ]
        }
    )
    hugging_face: HuggingFaceSource | None = None
    url: UrlSource | None = None
    path: PathSource | None = None
    image: ImageSource | None = None


class Adapter(Wire):
    name: Short
    source: Source
    scale: Annotated[str, Field(max_length=16, pattern=r"^[0-9.]+$")] = "1.0"


class ModelSpec(Wire):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.maxReplicas) || !has(self.minReplicas)"
                    " || self.maxReplicas >= 1",
                    "message": "maxReplicas must be at least 1",
                },
                {
                    "rule": "!(has(self.pinTo) && self.pinTo.size() > 0)"
                    " || (has(self.residency) && self.residency == 'Pinned')",
                    "message": "pinTo needs residency: Pinned",
                },
            ]
        }
    )
    source: Source
    id: Annotated[str, Field(max_length=253, min_length=1)] | None = None
    aliases: Annotated[
        list[Annotated[str, Field(max_length=253, min_length=1)]], Field(max_length=16)
    ] = []
    profile: Name | None = None
    overrides: ProfileFields | None = None
    min_replicas: Annotated[int, Field(ge=0, le=1024)] = 0
    max_replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    idle_timeout: Duration | None = None
    device: Annotated[str, Field(max_length=140, pattern=DEVICE_PATTERN)] | None = None
    residency: Literal["OnDemand", "Host", "Pinned"] = "OnDemand"
    pin_to: Annotated[list[Short], Field(max_length=64)] = []
    replicas: Literal["Count", "PerDevice"] = "Count"
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    suspend: bool = False
    node_selector: Labels = {}
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    projector: Source | None = None
    adapters: Annotated[list[Adapter], Field(max_length=16)] = []
    draft: Source | None = None


class FileFact(Wire):
    """One file of the source, pinned: what the node fetches and checks."""

    name: Annotated[str, Field(max_length=512)]
    url: Annotated[str, Field(max_length=2048)] = ""
    size: ByteCount = 0
    sha256: Annotated[str, Field(max_length=64)] | None = None
    etag: Annotated[str, Field(max_length=256)] | None = None
    role: Literal["weights", "projector", "adapter", "draft", "config"] = "weights"


class FactsStatus(Wire):
    """What the headers said. ``record`` is the estimator's own compact JSON of them."""

    architecture: Short = ""
    name: Short = ""
    quantization: Short = ""
    parameters: ByteCount = 0
    layers: Count = 0
    context_length: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    bytes: ByteCount = 0
    digest: Annotated[str, Field(max_length=80)] = ""
    revision: Annotated[str, Field(max_length=128)] = ""
    files: Annotated[list[FileFact], Field(max_length=256)] = []
    source_hash: Annotated[str, Field(max_length=64)] = ""
    record: Annotated[str, Field(max_length=131072)] = ""

    @classmethod
    def saying(
        cls,
        facts: Facts,
        *,
        files: Sequence[FileFact],
        digest: str,
        revision: str,
        source_hash: str = "",
        parts: Mapping[str, Facts] | None = None,
    ) -> "FactsStatus":
        """The facts of the weights, cut to this kind's bounds; those of other ``parts`` beside them."""
        record = facts.to_json()
        if parts:
            record |= {"parts": {name: part.to_json() for name, part in parts.items()}}
        return cls(
            architecture=facts.architecture[:253],
            name=facts.name[:253],
            quantization=facts.quantisation[:253],
            parameters=facts.parameters,
            layers=facts.layers or 0,
            context_length=facts.context_length or 0,
            bytes=sum(file.size for file in files),
            digest=digest[:80],
            revision=revision[:128],
            files=list(files[:256]),
            source_hash=source_hash,
            record=json.dumps(record, separators=(",", ":")),
        )


class Needs(Wire):
    """What one runner needs, in bytes and in a sentence."""

    text: Text = ""
    gpu: ByteCount = 0
    host: ByteCount = 0
    weights: ByteCount = 0
    kv_cache: ByteCount = 0
    state: ByteCount = 0
    buffers: ByteCount = 0
    projector: ByteCount = 0
    context_length: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    sure: bool = True
    notes: Annotated[list[Text], Field(max_length=16)] = []


class PlaceRefusal(Wire):
    """Nodes of one class that said no for one reason, with the best example of them."""

    reason: Annotated[str, Field(max_length=64)]
    count: Count = 1
    node: Name = ""
    device: Annotated[str, Field(max_length=140)] = ""
    need: ByteCount = 0
    have: ByteCount = 0
    capacity: ByteCount = 0
    message: Text = ""


class LastRefusal(Wire):
    reason: Annotated[str, Field(max_length=64)]
    message: Long = ""
    at: Time = ""
    places: Annotated[list[PlaceRefusal], Field(max_length=16)] = []


class ModelRunner(Wire):
    name: Name
    node: Name = ""
    device: Annotated[str, Field(max_length=512)] = ""
    state: Annotated[str, Field(max_length=32)] = ""
    address: Annotated[str, Field(max_length=128)] = ""
    """``ip:port`` that gateways send requests to; empty unless the runner is up and not draining."""


class ModelHold(Wire):
    """The Hold that keeps the model away, until a runner of it is up again."""

    name: Name
    reason: Text = ""
    budget: Duration = "0"
    since: Time = ""
    owed: bool | None = None
    """A runner of it was stopped for the hold: one is started after the hold though nobody waits."""


class LastGood(Wire):
    """The settings of the runner that was last up, and its launch, to go back to."""

    settings_hash: Annotated[str, Field(max_length=64)] = ""
    profile: Short = ""
    since: Time = ""
    fell: bool | None = None
    """It went down by itself while a change was asked for: it is started again before that is tried."""
    owed: bool | None = None
    """A runner was stopped for a change and none has been up since: one is started though nobody waits."""
    launch: Annotated[str, Field(max_length=65536)] = ""
    """How that runner was started, packed; empty when it was too long to be kept."""


class Trial(Wire):
    """Settings that are tried, or were tried and failed; gone once they are good."""

    settings_hash: Annotated[str, Field(max_length=64)] = ""
    profile: Short = ""
    started: bool | None = None
    """Its runner had a pod."""
    failed_at: Time | None = None
    reason: Annotated[str, Field(max_length=64)] | None = None
    """Why it failed; not tried again until the settings change."""
    message: Text | None = None


class MeasuredRun(Wire):
    """What one runner took at most: its peak on each device, its working set on the host."""

    runner: Annotated[str, Field(max_length=64)]
    host: ByteCount = 0
    devices: Annotated[list[ByteCount], Field(max_length=64)] = []


class MeasuredNeed(Wire):
    """The last runs with the same settings, launched the same way, on the same kind of device."""

    settings: Annotated[str, Field(max_length=64)]
    variant: Annotated[str, Field(max_length=128)] = ""
    device: Annotated[str, Field(max_length=253)] = ""
    """Name of the devices, or ``cpu``."""
    runs: Annotated[list[MeasuredRun], Field(max_length=5)] = []


class ModelStatus(Wire):
    observed_generation: int | None = None
    conditions: Conditions = []
    id: Annotated[str, Field(max_length=253)] = ""
    facts: FactsStatus | None = None
    needs: Needs | None = None
    active_profile: Short | None = None
    previous_profile: Short | None = None
    last_good: LastGood | None = None
    trial: Trial | None = None
    context_length: Annotated[int, Field(ge=0, le=1 << 40)] | None = None
    parallel: Count | None = None
    apis: Annotated[list[Short], Field(max_length=32)] = []
    """Those that its engine speaks: the endpoint offers no others."""
    prefix_cache: bool | None = None
    """Its engine reuses what it has read of a prompt: gateways send what begins alike to one runner."""
    replicas: Count = 0
    selector: Annotated[str, Field(max_length=512)] = ""
    runners: Annotated[
        list[ModelRunner],
        Field(
            max_length=128,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = []
    last_used: Time | None = None
    load_seconds: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=5)] = []
    autoloaded: bool | None = None
    """``autoload`` has had its turn: it was up, and did not go by a failure or for another's sake."""
    measured: Annotated[list[MeasuredNeed], Field(max_length=8)] = []
    """What runners really took; the next placement uses the larger of estimate and measurement."""
    last_refusal: LastRefusal | None = None
    restarts: Count = 0
    next_retry: Time | None = None
    load_handled: Annotated[str, Field(max_length=128)] | None = None
    """Value of the load annotation that was last acted on."""
    unload_handled: Annotated[str, Field(max_length=128)] | None = None
    hold: ModelHold | None = None
    not_before: Time | None = None
    """Set by an unload by hand: only a request that began to wait later loads the model again."""


class Model(Resource):
    kind: Literal["Model"] = "Model"
    spec: ModelSpec
    status: ModelStatus = ModelStatus()

    @property
    def served_id(self) -> str:
        """The id that clients name: ``spec.id``, else the object's name."""
        return self.spec.id or self.metadata.name
