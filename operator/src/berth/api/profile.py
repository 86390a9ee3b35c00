"""Profile: how a model is run."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from berth.api.meta import Conditions, Duration, EnvVar, Quantity, Resource, Short, Toleration, Wire

KV_TYPES = Literal[
    "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "fp8", "auto"
]
Argument = Annotated[str, Field(max_length=4096)]
Window = Annotated[int, Field(ge=0, le=1 << 30)]
ANY_OBJECT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class KvCacheType(Wire):
    k: KV_TYPES = "f16"
    v: KV_TYPES = "f16"


class HostExperts(Wire):
    enabled: bool = True
    cache_percent: Annotated[int, Field(ge=0, le=100)] = 10


class Parallelism(Wire):
    tensor: Annotated[int, Field(ge=1, le=1024)] = 1
    pipeline: Annotated[int, Field(ge=1, le=1024)] = 1
    data: Annotated[int, Field(ge=1, le=1024)] = 1
    expert: Annotated[int, Field(ge=1, le=1024)] = 1
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Over how many nodes the ranks are shared out, as many on each."""


class MemoryBounds(Wire):
    peak: Quantity | None = None
    ceiling: Quantity | None = None
    spare: Quantity | None = None


class SmokeTest(Wire):
    prompt: Annotated[str, Field(max_length=4096)] = "Say hello."
    expect: Annotated[str, Field(max_length=1024)] | None = None
    timeout: Duration = "60s"


class Drain(Wire):
    timeout: Duration = "300s"
    save_sessions: bool = False


class Readiness(Wire):
    path: Annotated[str, Field(max_length=512)] | None = None
    probe: Literal["None", "Chat", "Responses", "Messages"] = "None"


class ComputeResources(Wire):
    requests: Annotated[dict[str, Quantity], Field(max_length=16)] = {}
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] = {}


class PodTemplate(Wire):
    """An allow-list: nothing here can give a pod more rights than its namespace has."""

    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)] = {}
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)
    ] = {}
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    affinity: Annotated[dict[str, Any], Field(json_schema_extra=ANY_OBJECT)] | None = None
    image_pull_secrets: Annotated[list[Short], Field(max_length=8)] = []
    runtime_class_name: Short | None = None
    priority_class_name: Short | None = None


class ProfileFields(Wire):
    """Every launch setting. All optional: unset means the layer below decides."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.contextLength) || !has(self.maxContextLength)"
                    " || self.contextLength <= self.maxContextLength",
                    "message": "contextLength is above maxContextLength",
                }
            ]
        }
    )
    runtime: Annotated[str, Field(max_length=63)] | None = None
    images: (
        Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None
    ) = None
    context_length: Window | None = None
    max_context_length: Window | None = None
    parallel: Annotated[int, Field(ge=1, le=1024)] | None = None
    kv_cache_type: KvCacheType | None = None
    batch_size: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    micro_batch_size: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    flash_attention: Literal["auto", "on", "off"] | None = None
    threads: Annotated[int, Field(ge=0, le=4096)] | None = None
    host_experts: HostExperts | None = None
    cache_ram: Quantity | None = None
    parallelism: Parallelism | None = None
    args: Annotated[list[Argument], Field(max_length=128)] | None = None
    env: Annotated[list[EnvVar], Field(max_length=64)] | None = None
    command: Annotated[list[Argument], Field(max_length=128)] | None = None
    memory: MemoryBounds | None = None
    keep_warm: (
        Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None
    ) = None
    pre_exec: (
        Annotated[list[Annotated[list[Argument], Field(max_length=32)]], Field(max_length=8)] | None
    ) = None
    readiness: Readiness | None = None
    smoke_test: SmokeTest | None = None
    load_timeout: Duration | None = None
    hang_timeout: Duration | None = None
    drain: Drain | None = None
    resources: ComputeResources | None = None
    pod_template: PodTemplate | None = None


class ProfileSpec(ProfileFields):
    pass


class ProfileStatus(Wire):
    observed_generation: int | None = None
    conditions: Conditions = []
    models: Annotated[int, Field(ge=0)] = 0


class Profile(Resource):
    kind: Literal["Profile"] = "Profile"
    spec: ProfileSpec = ProfileSpec()
    status: ProfileStatus = ProfileStatus()
