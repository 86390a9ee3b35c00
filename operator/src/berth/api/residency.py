"""Residency: the memory policy for a group of nodes."""

from typing import Annotated, Literal

from pydantic import Field

from berth.api.meta import (
    ByteCount,
    Conditions,
    Count,
    Duration,
    EnvVar,
    Labels,
    Quantity,
    Resource,
    Short,
    Text,
    Time,
    Wire,
)

CodeKind = Literal["Command", "PodTemplate", "PreExec", "RemoteCode"]


class HostPolicy(Wire):
    """Host memory that stays free. ``floor`` and ``margin`` are for boards with unified memory."""

    reserve: Quantity = "1Gi"
    floor: Quantity = "15Gi"
    margin: Quantity = "6Gi"
    guard: Quantity = "10Gi"


class KeptDevices(Wire):
    """Devices, by index or UUID, that only the listed models may use."""

    devices: Annotated[list[Short], Field(min_length=1, max_length=64)]
    models: Annotated[list[Short], Field(min_length=1, max_length=128)]


class GpuPolicy(Wire):
    """Memory that stays free on each GPU; unset: the larger of 512 MiB and a sixteenth of it."""

    reserve: Quantity | None = None
    devices: Annotated[list[Short], Field(max_length=64)] = []
    """Indexes or UUIDs that runners may use; empty: all."""
    keep: Annotated[list[KeptDevices], Field(max_length=16)] = []
    """Devices kept for some models; the others use the rest."""


class ClaimPolicy(Wire):
    """Memory set aside for a program outside Berth."""

    name: Short
    memory: Quantity
    selector: Labels = {}


class HostWeights(Wire):
    budget: Annotated[
        str, Field(max_length=32, pattern=r"^(unlimited|[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?)$")
    ] = "0"
    after_load: Literal["Keep", "Drop"] = "Keep"


class ResidencySpec(Wire):
    node_selector: Labels = {}
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    host: HostPolicy = HostPolicy()
    guard: Literal["Loading", "EvictIdle"] = "Loading"
    gpu: GpuPolicy = GpuPolicy()
    threads: Annotated[int, Field(ge=0, le=4096)] = 0
    env: Annotated[list[EnvVar], Field(max_length=64)] = []
    models: Annotated[list[Short], Field(max_length=512)] = []
    cpu_runners: Literal["auto", "Always", "Never"] = "auto"
    max_runners: Annotated[int, Field(ge=0, le=100000)] = 0
    settle_time: Duration = "2s"
    load_order: Annotated[list[Short], Field(max_length=512)] = []
    claims: Annotated[list[ClaimPolicy], Field(max_length=32)] = []
    autoload: Annotated[list[Short], Field(max_length=512)] = []
    """Names of models loaded at start; the single entry ``Fit`` means all that fit."""
    host_weights: HostWeights = HostWeights()
    gpu_access: Literal["VisibleDevices", "DevicePlugin", "DRA"] = "VisibleDevices"
    sleep: bool = False
    host_paths: Annotated[
        list[Annotated[str, Field(max_length=1024, pattern="^/")]], Field(max_length=32)
    ] = []
    trust: Annotated[list[CodeKind], Field(max_length=8)] = []
    """What of a profile may run code on these nodes; empty: nothing but the runtimes' own commands."""


class PlannedModel(Wire):
    model: Short
    claim: ByteCount = 0
    loaded: bool = False
    fits: bool = False


class ResidencyRefusal(Wire):
    model: Short
    reason: Annotated[str, Field(max_length=64)]
    message: Text = ""
    at: Time = ""


class ResidencyStatus(Wire):
    observed_generation: int | None = None
    conditions: Conditions = []
    nodes: Count = 0
    runners: Count = 0
    host_capacity: ByteCount = 0
    host_claimed: ByteCount = 0
    device_capacity: ByteCount = 0
    device_claimed: ByteCount = 0
    models: Annotated[list[PlannedModel], Field(max_length=20)] = []
    refusals: Annotated[list[ResidencyRefusal], Field(max_length=10)] = []


class Residency(Resource):
    kind: Literal["Residency"] = "Residency"
    spec: ResidencySpec = ResidencySpec()
    status: ResidencyStatus = ResidencyStatus()
