"""What does the planner see? One immutable snapshot of the cluster, in its own words.

API objects are turned into these values by ``controller.observe``; a version of a CRD never
touches the planner. Moments are seconds on one clock, ``State.now`` included; memory is Bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from berth.reasons import Reason
from berth.units import Bytes

HOST = "host"
"""The place of a runner without a device, and the key of host memory in every map by device."""


class Stage(StrEnum):
    """How far a runner is. Each is derived from the Runner and its pod, never stored."""

    PREPARING = "Preparing"
    """Has a place in mind, fetches files, claims disk only."""
    RESERVED = "Reserved"
    """Holds its claim; waits for room and for the agent's admission."""
    STARTING = "Starting"
    """Admitted and its pod exists (or may), not yet up."""
    UP = "Up"
    STOPPING = "Stopping"
    """Its pod or its Runner is being deleted; its bytes are coming, not yet free."""
    FAILED = "Failed"
    """Its pod ended or its preparation failed; ``Runner.exit_reason`` says why."""
    LOST = "Lost"
    """Its node has not been ready for long; never routed to again."""


@dataclass(frozen=True)
class Device:
    """One GPU. ``used`` is live and includes everybody; ``None``: it does not tell."""

    uuid: str
    index: int
    capacity: Bytes
    used: Bytes | None = None
    unified: bool = False
    name: str = ""


@dataclass(frozen=True)
class KeptDevices:
    """Devices (UUIDs, or indexes as text) that only the listed models may use."""

    devices: frozenset[str]
    models: frozenset[str]


@dataclass(frozen=True)
class Copy:
    """One file's weights, held in a node's memory by a pod of Berth's own: an entry in the ledger."""

    sha256: str
    size: Bytes
    claim: Bytes
    """What its pod may hold at most."""
    ready: bool = False
    """Every page is there and locked."""


@dataclass(frozen=True)
class Policy:
    """What the Residency that governs a node says; defaults are the cluster's."""

    name: str = ""
    host_reserve: Bytes = Bytes(1 << 30)
    unified_floor: Bytes = Bytes(15 << 30)
    unified_margin: Bytes = Bytes(6 << 30)
    gpu_reserve: Bytes | None = None
    """Unset: the larger of 512 MiB and a sixteenth of the device."""
    devices: frozenset[str] = frozenset()
    """UUIDs or indexes (as text) that runners may use; empty: all."""
    cpu_runners: str = "auto"
    max_runners: int = 0
    settle_s: float = 2.0
    models: frozenset[str] = frozenset()
    kept_devices: tuple["KeptDevices", ...] = ()
    load_order: tuple[str, ...] = ()
    autoload: tuple[str, ...] = ()
    claims: Bytes = Bytes(0)
    """Host memory set aside for programs outside Berth."""
    claims_used: Bytes = Bytes(0)
    host_paths: tuple[str, ...] = ()
    host_weights: Bytes = Bytes(0)
    """Host memory for copies of weights; what is unlimited is 1 << 62."""
    drop_after_load: bool = False
    """A model that is up on a GPU gives its copy back until it is unloaded."""
    trust: frozenset[str] = frozenset()
    """Kinds of a profile's own code (a command, steps before the start, …) that may run here."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables of every engine on these nodes; carried, not planned by."""


@dataclass(frozen=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True)
class Toleration:
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True)
class Node:
    """One node. A node bounds a place by both arithmetics: Berth's bytes and the scheduler's."""

    name: str
    capacity: Bytes
    """MemTotal of the host."""
    available: Bytes
    """MemAvailable, live; includes page cache that could be dropped."""
    warm: Bytes = Bytes(0)
    devices: tuple[Device, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    not_ready_since: float | None = None
    schedulable: bool = True
    agent_fresh: bool = True
    disk_free: Bytes = Bytes(1 << 62)
    files: frozenset[str] = frozenset()
    """sha256 of the files in its store."""
    allocatable: Bytes = Bytes(1 << 62)
    """Allocatable memory as the scheduler sees it."""
    requested: Bytes = Bytes(0)
    """Memory requests of all pods bound to it that are not Berth's runners."""
    allocatable_pods: int = 1 << 30
    pods: int = 0
    """Pods bound to it that are not Berth's runners."""
    policy: Policy = Policy()
    held_by: str = ""
    """Name of the Hold that has taken it."""
    cpus: int = 0
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True)
class Claim:
    """Bytes held at the worst case, by device UUID, and on the host."""

    host: Bytes = Bytes(0)
    devices: tuple[tuple[str, Bytes], ...] = ()

    def on(self, device: str) -> Bytes:
        """Bytes claimed of ``device`` (a UUID or HOST)."""
        if device == HOST:
            return self.host
        return Bytes(sum(size for uuid, size in self.devices if uuid == device))


@dataclass(frozen=True)
class Need:
    """What one runner of a model needs in one way of running it, before a place is chosen.

    ``gpus`` bytes for each device of the set, in order; empty: it runs on the CPU.
    """

    host: Bytes
    gpus: tuple[Bytes, ...] = ()
    sure: bool = True
    text: str = ""
    file_pages: Bytes = Bytes(0)
    """The part of ``host`` that is pages of the files, mapped: copies on a node may hold them."""
    hosts: int = 1
    """Over how many nodes: ``host`` and ``gpus`` are of each of them."""
    variant: str = ""
    """How the runtime is to be told (for example ``n_cpu_moe=12``); opaque to the planner."""


@dataclass(frozen=True)
class Runner:
    """One ledger entry. It ends when neither its Runner object nor its pod exists."""

    uid: str
    name: str
    model: str
    node: str
    claim: Claim
    stage: Stage
    ordinal: int = 0
    attempt: int = 0
    created: float = 0.0
    up_since: float | None = None
    busy: int = 0
    """Requests in hand as the agent last saw; anything above 0 forbids it as a victim."""
    quiet_since: float | None = None
    """Set while draining: since when the agent has seen nothing in hand after this very order."""
    measured: tuple[tuple[str, Bytes], ...] = ()
    """By device UUID or HOST; a device left out could not be measured."""
    settings_hash: str = ""
    drain: "Drain | None" = None
    fetched: bool = False
    """Its files are on the node and verified."""
    admitted_until: float | None = None
    admission_refused: Reason | None = None
    admission_message: str = ""
    exit_reason: Reason | None = None
    exit_message: str = ""
    exit_at: float | None = None
    pod_exists: bool = False
    pod_deleting: bool = False
    health: str = "Unknown"
    load_deadline: float | None = None
    runs_code: frozenset[str] = frozenset()
    """Kinds of code of its profile that need a policy's trust."""
    kill: bool = False
    """Killing by hand was asked for: the same as a crash."""
    epoch: int = 0
    reserved_at: float | None = None
    """When it became Reserved; unset: ``created``."""
    part_of: str = ""
    """Uid of the runner whose group it belongs to, on another node; it lives and ends with that one."""
    foreign_deletion: bool = False
    """Somebody else deletes its pod while its Runner object still stands."""


@dataclass(frozen=True)
class Drain:
    """A drain that was ordered."""

    reason: Reason
    since: float
    deadline: float
    newcomer: str = ""
    """Key of the model that the room is made for; empty where nobody's."""


@dataclass(frozen=True)
class Restarts:
    """How a model's loads have failed lately; decides the back-off and the larger need."""

    count: int = 0
    last_failed: float | None = None
    next_retry: float | None = None
    reason: Reason | None = None
    message: str = ""
    terminal: bool = False
    """The user must change something; only a new generation or a load by hand tries again."""
    excluded: tuple[tuple[str, float], ...] = ()
    """Nodes to leave out, and until when."""


@dataclass(frozen=True)
class Model:
    """One declared model and who wants it."""

    key: str
    """``namespace/name``."""
    uid: str
    needs: tuple[Need, ...] = ()
    """Ways to run it, best first: GPU before GPU with host experts before CPU. Empty: unknown."""
    blocked: Reason | None = None
    """Why it cannot be planned at all (profile missing, header invalid, suspended, …)."""
    blocked_message: str = ""
    waiting: int = 0
    """Requests that wait, over all gateways whose beat is fresh."""
    waiting_since: float | None = None
    """When the eldest of them was first seen waiting, on our clock."""
    used: float = 0.0
    """When a request last ran or ended, clamped where first seen."""
    min_replicas: int = 0
    max_replicas: int = 1
    pinned: bool = False
    keeps_host: bool = False
    """Its weights stay in host memory (``residency: Host``)."""
    pin_to: tuple[str, ...] = ()
    per_device: bool = False
    """A runner on every device that it may use, instead of a number of them."""
    idle_timeout_s: float = 1800.0
    device: str = "auto"
    priority: int = 0
    suspended: bool = False
    load_asked: float | None = None
    """A load by hand, and when it was seen; stays set until the model is up, failed or refused for good."""
    unload_asked: float | None = None
    """An unload by hand that was not acted on yet, and when it was seen."""
    not_before: float | None = None
    """Set by an unload by hand: only demand that began later counts. The controller drops it once a
    runner that was made later is up."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    files: tuple[tuple[str, Bytes], ...] = ()
    """(sha256 or an empty text, bytes) of what a node must have before a start."""
    settings_hash: str = ""
    load_seconds: float | None = None
    parallel: int = 1
    drain_timeout_s: float = 300.0
    load_timeout_s: float = 900.0
    restarts: Restarts = Restarts()
    local_nodes: frozenset[str] | None = None
    """Nodes that alone can see its files (host paths); ``None``: any node."""
    runs_code: frozenset[str] = frozenset()
    """Kinds of code of its profile that need a policy's trust."""
    device_names: tuple[str, ...] = ()
    """Parts of GPU names, one of which each of its devices must have; empty: any."""
    autoload_done: bool = False
    """It has been up once since it was declared: ``autoload`` has had its turn."""
    profile: str = ""
    """``namespace/name`` of its Profile: those of one change their settings one after the other."""
    away_for: str = ""
    """Name of the hold, still in force, for which its runner was stopped."""
    returns: bool = False
    """Its runner was stopped for a hold that is over, and none has been up since."""
    owed: bool = False
    """A runner of it was stopped for new settings and none is up since: one is owed."""
    on_trial: bool = False
    """A runner with new settings stands that is not known to be good yet."""


NOBODY = Model(key="", uid="")
"""Where a model is asked for and there is none."""


@dataclass(frozen=True)
class State:
    """Everything that one pass decides from."""

    now: float
    epoch: int
    nodes: tuple[Node, ...] = ()
    models: tuple[Model, ...] = ()
    runners: tuple[Runner, ...] = ()
    healthy_since: float = 0.0
    """Since when the watches have been healthy: no idle unload or eviction before 90 s of it."""
    fairness_s: float = 60.0
    """How long a loaded model with waiting or running requests may keep another one waiting."""
    recently_freed: Mapping[str, float] = field(default_factory=dict)
    """By ``node/device``: when a runner there was last seen to be gone."""
    healthy_needed_s: float = 90.0
    """How long the watches must have been healthy before anything idle is unloaded or evicted."""
    drain_quiet_s: float = 2.0
    """How long a draining runner must have been quiet before it is stopped."""
    lost_after_s: float = 60.0
    """How long a node may be not ready before its runners count as lost."""
    reserve_patience_s: float = 60.0
    """How long a reservation may be refused by the agent with nothing in the way."""
    spare_grace_s: float = 30.0
    """How long an idle victim that turned out to be busy is waited for before it is spared."""
    first_use_s: float = 6.0
    """How long after coming up, or after a use, a report of no work is not believed yet: agents probe
    every 5 s."""
