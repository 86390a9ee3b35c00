"""Runner: one loaded copy of a model, and the entry of the ledger that says what it holds."""

from typing import Annotated, Literal

from pydantic import Field

from berth.api.meta import (
    ByteCount,
    Conditions,
    Count,
    EnvVar,
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
from berth.api.model import FileFact
from berth.api.profile import ComputeResources, PodTemplate
from berth.api.residency import CodeKind

DeviceId = Annotated[str, Field(max_length=140)]
Seconds = Annotated[int, Field(ge=0, le=10_000_000)]
Epoch = Annotated[int, Field(ge=0)]


Word = Annotated[str, Field(max_length=4096)]


class DeviceClaim(Wire):
    """Bytes of one device, by UUID."""

    device: DeviceId
    index: Annotated[int, Field(ge=0, le=1024)] = 0
    memory: ByteCount


class Claim(Wire):
    """What a runner may hold at its worst. ``host`` includes file pages that it reads repeatedly."""

    host: ByteCount = 0
    host_file_pages: ByteCount = 0
    host_copied: ByteCount = 0
    """File pages that it reads repeatedly and that a copy on the node holds: not part of ``host``."""
    devices: Annotated[list[DeviceClaim], Field(max_length=64)] = []
    disk: ByteCount = 0


class ModelRef(Wire):
    name: Name
    uid: Annotated[str, Field(max_length=64)]
    generation: int = 0


class DrainOrder(Wire):
    reason: Annotated[str, Field(max_length=64)]
    since: Time
    deadline: Time
    """A drain past its deadline may cut answers: deletions by hand and of Models only."""
    newcomer: Annotated[str, Field(max_length=512)] = ""
    """``namespace/name`` of the Model that the room is made for; a new leader reads it here."""


class Mount(Wire):
    """Where the files come from when they are not fetched: a directory of the node or a claim."""

    host_path: Annotated[str, Field(max_length=1024)] | None = None
    persistent_volume_claim: Name | None = None


class SmokeRequest(Wire):
    """A streamed request that the engine must answer well before the runner counts as up."""

    path: Annotated[str, Field(max_length=512)]
    body: Annotated[str, Field(max_length=16384)]
    """JSON."""
    expect: Annotated[str, Field(max_length=1024)] = ""
    timeout_seconds: Seconds = 60
    asked: bool = True
    """By the profile; else an engine that does not speak this API passes."""


MetricName = Annotated[str, Field(max_length=128)]


class Metrics(Wire):
    """What an engine calls its figures: ``busy`` adds up to the work in hand, ``progress`` moves with it."""

    path: Annotated[str, Field(max_length=512)] = "/metrics"
    busy: Annotated[list[MetricName], Field(max_length=8)] = []
    prompt_tokens: MetricName = ""
    tokens: MetricName = ""
    served: Annotated[list[MetricName], Field(max_length=8)] = []
    progress: Annotated[list[MetricName], Field(max_length=8)] = []
    slots: bool = False
    """llama.cpp's ``/slots`` tells more."""


class EngineTraits(Wire):
    """What agent and runner need to know of the engine; no plugin is installed where they run."""

    health_path: Annotated[str, Field(max_length=512)] = "/health"
    metrics: Metrics | None = None
    versions: Annotated[
        dict[
            Annotated[str, Field(max_length=64)],
            Annotated[list[Word], Field(max_length=16)],
        ],
        Field(max_length=16),
    ] = {}
    """Commands by label, run once in the container when the engine is up."""


class GroupMember(Wire):
    """Of a model that runs on several nodes at once: which of the Runners this is."""

    head: Name
    """Name of the Runner of rank 0, which alone is routed to; the others live and end with it."""
    rank: Annotated[int, Field(ge=0, le=63)]
    size: Annotated[int, Field(ge=2, le=64)]


class RunnerSpec(Wire):
    model_ref: ModelRef
    profile: Short = ""
    ordinal: Count = 0
    attempt: Count = 0
    epoch: Epoch = 0
    pass_id: Annotated[str, Field(max_length=64)] = ""
    stage: Literal["Preparing", "Reserved"] = "Preparing"
    """Preparing claims disk only and has touched nobody; Reserved holds its whole claim."""
    node_name: Name
    claim: Claim = Claim()
    files: Annotated[list[FileFact], Field(max_length=256)] = []
    mount: Mount | None = None
    token_secret_ref: SecretKeyRef | None = None
    runtime: Annotated[str, Field(max_length=63)] = "llamacpp"
    image: Annotated[str, Field(max_length=512)] = ""
    command: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=256)] = []
    env: Annotated[list[EnvVar], Field(max_length=128)] = []
    port: Annotated[int, Field(ge=1, le=65535)] = 8080
    parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    context_length: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    settings_hash: Annotated[str, Field(max_length=64)] = ""
    variant: Annotated[str, Field(max_length=128)] = ""
    """In which of the Model's ways it is launched, for example with how many layers on the host."""
    load_timeout_seconds: Seconds = 900
    hang_timeout_seconds: Seconds = 120
    drain_timeout_seconds: Seconds = 300
    tolerations: Annotated[list[Toleration], Field(max_length=64)] = []
    node_selector: Labels = {}
    resources: ComputeResources | None = None
    pod_template: PodTemplate | None = None
    keep_warm: Annotated[list[Annotated[str, Field(max_length=1024)]], Field(max_length=64)] = []
    """Names of files whose page cache stays after the load: the engine reads them again."""
    pre_exec: Annotated[list[Annotated[list[Word], Field(max_length=32)]], Field(max_length=8)] = []
    """Argument lists that run, one after the other, before the engine on every start."""
    runs_code: Annotated[list[CodeKind], Field(max_length=8)] = []
    """What of its profile needs a policy's trust."""
    smoke_test: SmokeRequest | None = None
    engine: EngineTraits | None = None
    group: GroupMember | None = None
    drain: DrainOrder | None = None


class FetchStatus(Wire):
    state: Literal["Pending", "Fetching", "Verified", "Failed"] = "Pending"
    done: ByteCount = 0
    total: ByteCount = 0
    rate: ByteCount = 0
    """Bytes per second over the last moments."""
    reason: Annotated[str, Field(max_length=64)] | None = None
    message: Text | None = None


class Admission(Wire):
    """The agent's word that the memory is really there, for one pass, until ``expiresAt``."""

    state: Literal["Admitted", "Refused"]
    at: Time
    expires_at: Time
    pass_id: Annotated[str, Field(max_length=64)]
    need: ByteCount = 0
    have: ByteCount = 0
    reason: Annotated[str, Field(max_length=64)] | None = None
    message: Text | None = None


class Health(Wire):
    state: Literal["Unknown", "Starting", "Ready", "Silent", "Hung"] = "Unknown"
    busy: Count = 0
    """Requests that the engine works on or holds, as the engine tells; 0 when it does not answer."""
    since: Time = ""
    served: Annotated[int, Field(ge=0)] = 0
    prompt_tokens: Annotated[int, Field(ge=0)] = 0
    tokens: Annotated[int, Field(ge=0)] = 0
    failed_checks: Count = 0


class DeviceUse(Wire):
    device: DeviceId
    used: ByteCount = 0
    peak: ByteCount = 0


class MemoryUse(Wire):
    """What the runner holds, by cgroup and NVML. A figure that cannot be measured is left out."""

    host: ByteCount | None = None
    host_peak: ByteCount | None = None
    devices: Annotated[list[DeviceUse], Field(max_length=64)] = []


class Quiet(Wire):
    """Since when nothing is in hand, and which drain order (its ``since``) that was seen under."""

    since: Time
    drain_seen: Time


class AgentStatus(Wire):
    """The subtree that the node's agent writes, whole each time."""

    epoch: Epoch | None = None
    fetch: FetchStatus | None = None
    admission: Admission | None = None
    health: Health | None = None
    memory: MemoryUse | None = None
    quiet: Quiet | None = None
    versions: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=256)]],
        Field(max_length=16),
    ] = {}
    """Of the engine and what lies under it, as its container told once it was up."""


class LastExit(Wire):
    reason: Annotated[str, Field(max_length=64)]
    exit_code: int | None = None
    message: Long = ""
    at: Time = ""


class RunnerStatus(Wire):
    agent: AgentStatus | None = None
    conditions: Conditions = []
    state: Annotated[str, Field(max_length=32)] = ""
    pod: Name | None = None
    address: Annotated[str, Field(max_length=128)] | None = None
    started: Time | None = None
    up_since: Time | None = None
    load_seconds: Seconds | None = None
    last_exit: LastExit | None = None


class Runner(Resource):
    kind: Literal["Runner"] = "Runner"
    spec: RunnerSpec
    status: RunnerStatus = RunnerStatus()

    @property
    def model_key(self) -> str:
        """``namespace/name`` of its Model."""
        return f"{self.metadata.namespace}/{self.spec.model_ref.name}"

    @property
    def is_part(self) -> bool:
        """Whether it is a member of a group and not its head."""
        return self.spec.group is not None and self.spec.group.rank > 0
