"""NodeInventory: what a node has. One per node, same name, written by its agent alone."""

from typing import Annotated, Literal

from pydantic import Field

from berth.api.meta import ByteCount, Conditions, Count, Resource, Short, Text, Time, Wire
from berth.api.model import FactsStatus


class HostMemory(Wire):
    total: ByteCount = 0
    available: ByteCount = 0
    """MemAvailable, by quanta of max(256 MiB, 2 %) and at most every 10 s."""
    warm: ByteCount = 0
    """Page cache that running engines read again and that policy therefore does not count as free."""
    claims_used: ByteCount = 0
    """Of what the policy sets aside for programs outside Berth, what they use now."""


class Device(Wire):
    uuid: Annotated[str, Field(max_length=140)]
    index: Annotated[int, Field(ge=0, le=1024)] = 0
    name: Short = ""
    memory: ByteCount = 0
    """0 on boards that report none: such a device is unified and the host's memory counts."""
    used: ByteCount = 0
    compute_capability: Annotated[str, Field(max_length=16)] = ""
    unified: bool = False


class StoredFile(Wire):
    sha256: Annotated[str, Field(max_length=64)]
    size: ByteCount


class InspectedPath(Wire):
    """Facts of a host path that a Model names and a Residency allows; only the node can see it."""

    path: Annotated[str, Field(max_length=2048)]
    facts: FactsStatus | None = None
    reason: Annotated[str, Field(max_length=64)] | None = None
    message: Text | None = None


class NodeInventorySpec(Wire):
    pass


class NodeInventoryStatus(Wire):
    conditions: Conditions = []
    epoch: Annotated[int, Field(ge=0)] = 0
    """The highest controller epoch seen; Runners with a lower one are refused."""
    host: HostMemory = HostMemory()
    cpus: Count = 0
    devices: Annotated[list[Device], Field(max_length=64)] = []
    driver: Annotated[str, Field(max_length=64)] = ""
    disk_total: ByteCount = 0
    disk_free: ByteCount = 0
    files: Annotated[list[StoredFile], Field(max_length=512)] = []
    file_count: Count = 0
    files_digest: Annotated[str, Field(max_length=64)] = ""
    paths: Annotated[list[InspectedPath], Field(max_length=32)] = []
    started: Time = ""
    guard_kills: Count = 0


class NodeInventory(Resource):
    kind: Literal["NodeInventory"] = "NodeInventory"
    spec: NodeInventorySpec = NodeInventorySpec()
    status: NodeInventoryStatus = NodeInventoryStatus()
