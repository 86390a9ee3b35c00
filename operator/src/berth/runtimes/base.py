"""What must an engine's module answer so that Berth can run the engine?

A runtime is a small class: `Traits` say what is so whatever is launched, a few pure methods work out the rest.
It starts nothing, prints nothing and keeps nothing: one instance serves every launch at once.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from berth.estimator import Device, Estimate
from berth.facts import Facts
from berth.runtimes.flags import Flag

if TYPE_CHECKING:  # A pasted command line is priced without the types of the API.
    from berth.api.profile import ProfileFields

API_VERSION = 1
"""Of this protocol. A plugin states the one that it was written for; another one is refused by name."""
INIT_PORT = 25000
"""Where the ranks of a group meet, on the head's address."""


class Api(StrEnum):
    """An API that an engine speaks; the endpoint offers no other."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    POOLING = "pooling"
    CLASSIFY = "classify"
    MODERATIONS = "moderations"
    AUDIO = "audio"
    IMAGES = "images"
    VIDEOS = "videos"
    INFILL = "infill"
    TOKENIZE = "tokenize"


class Probe(StrEnum):
    """A short streamed request; the first frame with content is its answer (`berth.runtimes.probes`)."""

    CHAT = "Chat"
    RESPONSES = "Responses"
    MESSAGES = "Messages"


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine calls its figures on its metrics page.

    ``busy`` gauges add up to the work in hand; ``progress`` is what moves, beside the tokens, while a long prompt
    is read; ``slots``: llama.cpp's ``/slots`` tells more.
    """

    busy: tuple[str, ...]
    prompt_tokens: str
    tokens: str
    served: tuple[str, ...] = ()
    progress: tuple[str, ...] = ()
    path: str = "/metrics"
    slots: bool = False


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where one rank's output is: the container's own, or a file in it."""

    kind: Literal["stdout", "file"] = "stdout"
    path: str = ""
    role: str = "engine"


@dataclass(frozen=True, slots=True)
class CachePath:
    """A compile cache below the mounted folder, by environment variable.

    ``single_file``: it has no check of its own, so that the fingerprint of image and settings is in its name.
    """

    path: str
    single_file: bool = False

    def under(self, root: str, fingerprint: str) -> str:
        """Its path in the container."""
        name = f"{self.path}-{fingerprint}" if self.single_file else f"{fingerprint}/{self.path}"
        return f"{root}/{name}"


@dataclass(frozen=True, slots=True)
class Ranks:
    """How wide a model is to be spread in each way, and over how many nodes."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    context: int = 1
    hosts: int = 1


@dataclass(frozen=True, slots=True)
class Spread:
    """The ways in which an engine can be spread, by field of `Ranks`, and over how many nodes.

    ``replica_domains``: each data-parallel replica is a service of its own; its ranks are as many on every node.
    """

    kinds: frozenset[str] = frozenset()
    most_hosts: int = 1
    replica_domains: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a group. ``head`` is the address of rank 0's node."""

    rank: int
    size: int
    head: str
    init_port: int = INIT_PORT


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has to say. An error blocks the launch; the others are shown."""

    level: Literal["error", "warning", "suggestion"]
    text: str


@dataclass(frozen=True, slots=True)
class Host:
    """What is known of a node when a launch is checked against it (``prepare``)."""

    name: str
    devices: tuple[str, ...] = ()
    """Names of its GPUs, as the driver tells them."""
    image: str = ""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA file in the runner's pod and how strongly it is applied."""

    path: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """One model that is to be run on one kind of hardware, before any place is known.

    ``fields`` are the settings of the whole chain, this runtime's own defaults at the bottom.
    """

    facts: Facts
    fields: "ProfileFields"
    hardware: str = "cuda"
    name: str = "model"
    """The id under which it is served."""
    asked: frozenset[str] = frozenset()
    """Wire names of the fields that somebody set; the others are defaults."""
    ranks: Ranks = Ranks()
    projector: Facts | None = None
    adapters: tuple[Facts, ...] = ()
    draft: Facts | None = None

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of one node; none on CPUs."""
        ranks = self.ranks
        count = ranks.tensor * ranks.pipeline * ranks.data * ranks.context // ranks.hosts
        return tuple(Device(name=f"GPU{n}") for n in range(count)) if self.hardware != "cpu" else ()


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a job, priced. ``estimate`` is of one node; ``settings`` are the runtime's own."""

    name: str
    settings: Any
    estimate: Estimate
    context: int
    """Tokens of one request, as they are passed; the estimate may round them up."""
    devices: int = 0
    hosts: int = 1


@dataclass(frozen=True, slots=True)
class Launch:
    """Where things are in the runner's pod, and on which address the engine listens."""

    model: str
    """The path of the model's file (of the first shard), or of its folder."""
    name: str
    """The id under which the model is served."""
    host: str = "0.0.0.0"
    port: int = 8080
    projector: str | None = None
    adapters: tuple[Adapter, ...] = ()
    draft: str | None = None
    sessions: str | None = None
    """A folder for saved sessions."""
    cards: tuple[int, ...] = ()
    """Bytes of each device that it was given; known once it is placed."""
    revision: str = ""
    """The verified commit of the files."""
    template: tuple[str, ...] = ()
    """The profile's ``command``; empty: the runtime's own."""
    args: tuple[str, ...] = ()
    """The profile's literal arguments, last."""
    values: Mapping[str, str] = field(default_factory=dict)
    """More placeholders, by name."""
    skip: frozenset[str] = frozenset()
    """Keys of the flag map that are left out, of templates and arguments too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is so of an engine whatever is launched."""

    name: str
    api_version: int = API_VERSION
    hardware: tuple[str, ...] = ("cuda",)
    """Kinds of hardware that it runs on, best first."""
    requires: frozenset[str] = frozenset()
    """Parts of GPU names; every device of every node must have one of them. Empty: any GPU of its hardware."""
    images: Mapping[str, str] = field(default_factory=dict)
    """An image by hardware where the chart and the profile name none."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Profile fields by their wire names: the lowest layer of the settings."""
    hardware_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By hardware: the layer above."""
    hardware_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables by hardware, over the runtime's own."""
    known_keys: frozenset[str] = frozenset()
    """Profile fields that it uses, beside those that Berth itself uses. Others are reported."""
    flags: Mapping[str, Flag] = field(default_factory=dict)
    """The engine's flags by setting. What is priced and what the planner owns is among them."""
    priced: frozenset[str] = frozenset()
    """Keys of ``flags`` that move a byte: a literal one is priced as written."""
    owned: frozenset[str] = frozenset()
    """Keys of ``flags`` that only Berth sets (model, address, memory share): a literal one is refused."""
    unpriced: tuple[str, ...] = ()
    """Flags that move bytes that nobody here can price: refused."""
    coordination: tuple[str, ...] = ()
    """Flags by which the ranks of a group find each other: Berth supplies them, a literal one is refused."""
    code: tuple[str, ...] = ()
    """Flags by which code out of the model's own files is run: they need a policy's trust."""
    revision: tuple[str, ...] = ()
    """Flags that name a revision of the model."""
    health_path: str = "/health"
    """Answers 200 once the engine serves."""
    probes: tuple[Probe, ...] = ()
    """Streamed readiness probes that it can answer, the first is the one of ``probe: Auto``."""
    apis: frozenset[Api] = frozenset()
    formats: frozenset[str] = frozenset({"gguf", "safetensors"})
    takes: frozenset[str] = frozenset()
    """What it loads beside the weights: ``projector``, ``adapters``, ``draft``."""
    counters: Counters | None = None
    spread: Spread = Spread()
    logs: tuple[LogSource, ...] = (LogSource(),)
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Argument lists by label; the last line that is not empty is the version."""
    caches: Mapping[str, CachePath] = field(default_factory=dict)
    has_prefix_cache: bool = True
    has_rank_env: bool = True
    """Ranks of a group can have different environments."""
    has_mixed_images: bool = False
    """Ranks of a group were shown to work with different images."""


class Runtime(Protocol):
    """One engine. All of it is pure: values in, values out. Derive from it and give what differs."""

    traits: Traits

    @abstractmethod
    def ways(self, job: Job) -> Sequence[Way]:
        """Ways to run a job on its hardware, best first, each with its price. Raises ValueError."""
        ...

    @abstractmethod
    def command(self, settings: Any, launch: Launch) -> list[str]:
        """The engine's argument list; every setting that moves a byte is in it."""
        ...

    def environment(self, settings: Any) -> Mapping[str, str]:
        """Variables that the engine needs beside its arguments; a profile's win over them."""
        return {}

    def check(self, job: Job) -> Sequence[Finding]:
        """What is wrong with a job; `berth.runtimes.checks` has the rules that hold for every engine."""
        from berth.runtimes.checks import check_job

        return check_job(self.traits, job)

    def prepare(self, job: Job, hosts: Sequence[Host]) -> Sequence[Finding]:
        """Checks against the nodes that were chosen; made in a dry run too."""
        from berth.runtimes.checks import check_hosts

        return check_hosts(self.traits, job, hosts)

    def world_size(self, ranks: Ranks) -> int:
        """How many ranks (devices) a spread takes, over all of its nodes."""
        return ranks.tensor * ranks.pipeline * ranks.data * ranks.context

    def node_command(self, settings: Any, launch: Launch, member: Member) -> list[str]:
        """The argument list of one node of a group. Raises ValueError where there are no groups."""
        raise ValueError(
            f"{self.traits.name} runs on one node, not as member {member.rank} of {member.size}"
        )
