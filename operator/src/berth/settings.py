"""Which settings does Berth read, with which default, and why that default?

The one registry: every program reads its settings here, from environment variables named
``BERTH_…`` (the chart writes them), and a test fails when anything reads the environment another
way. ``berth settings`` prints what is in effect.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from berth.units import Bytes, parse_duration, parse_quantity


@dataclass(frozen=True)
class Setting:
    """One setting. ``unit`` is text, duration, bytes, number, list or flag."""

    name: str
    default: str
    unit: str
    read_by: str
    what: str
    why: str

    @property
    def variable(self) -> str:
        """The environment variable that carries it."""
        return f"BERTH_{self.name}"


REGISTRY: tuple[Setting, ...] = (
    Setting("NAMESPACE", "berth-system", "text", "all", "namespace of Berth's own objects", "the chart's default"),
    Setting("POD_NAME", "", "text", "all", "name of this pod, for leases and field managers", "the downward API fills it"),
    Setting("NODE_NAME", "", "text", "agent", "node that this agent owns", "the downward API fills it"),
    Setting("LOG_LEVEL", "info", "text", "all", "log level, passed on to runners", "a line per thing that happened"),
    Setting("IDLE_TIMEOUT", "30m", "duration", "controller", "idle time before an unload, for Models that leave it out; 0: never", "long enough for a pause in a chat"),
    Setting("DEVICE", "auto", "text", "controller", "device of Models that leave it out", "a GPU where there is one"),
    Setting("CONTEXT_LENGTH", "4096", "number", "controller", "context per request when neither Model nor Profile say", "a chat fits; the trained window can cost more than the weights"),
    Setting("RUNTIMES", "llamacpp,vllm,sglang,tensorrt-llm,max,command", "list", "controller", "runtimes that are switched on, by name", "those of this package; a plugin is named here"),
    Setting("RUNNER_IMAGES", "", "list", "controller", "runner images: RUNTIME/HARDWARE=IMAGE", "the chart pins them, in runnerImages"),
    Setting("IMAGE_OPERATOR", "", "text", "controller", "image of the pods that look at the files of a claim", "the chart sets its own image"),
    Setting("RUNTIME_CLASS", "", "text", "controller", "runtime class of runner pods that get a GPU", "empty: the node's default runtime"),
    Setting("HF_ENDPOINT", "https://huggingface.co", "text", "controller, agent", "the hub that huggingFace sources name", "the public hub"),
    Setting("SOURCE_ALLOW", "", "list", "controller, agent", "hosts and CIDRs that sources may reach although private", "empty: no Model can make Berth call inside the cluster"),
    Setting("STORE_ROOT", "/var/lib/berth", "text", "agent, controller", "folder of the node that holds fetched files", "survives the pod"),
    Setting("STORE_VOLUME", "csi", "text", "controller", "how runner pods mount the store: csi (the driver store.berth.dev) or hostPath", "hostPath is refused where a namespace enforces the restricted Pod Security standard"),
    Setting("KUBELET_DIR", "/var/lib/kubelet", "text", "agent", "the kubelet's root folder, where the volume driver mounts", "the kubelet's own default"),
    Setting("SESSION_LIMIT", "8Gi", "bytes", "controller", "disk that the saved sessions of one runner may take", "a long conversation of a large model is a few GiB"),
    Setting("SESSION_BUDGET", "32Gi", "bytes", "agent", "disk that saved sessions may take on a node; the oldest go first", "a few models with long conversations"),
    Setting("SESSION_AGE", "24h", "duration", "agent", "how long saved sessions are kept after their last save", "a chat that is taken up the next day; what people said is not kept for longer"),
    Setting("PASS_DEBOUNCE", "50ms", "duration", "controller", "quiet time before a planning pass", "a burst of events makes one pass"),
    Setting("DRAIN_QUIET", "2s", "duration", "controller", "quiet time before a draining runner is stopped", "a request on its way still arrives"),
    Setting("HEALTHY_BEFORE_UNLOAD", "90s", "duration", "controller", "how long watches must be healthy before anything idle is unloaded", "missing reports of use must not look like idleness"),
    Setting("HOLD_SILENCE", "2400s", "duration", "controller", "silence of a holder that renewed its hold after which the hold ends", "a holder that crashed keeps nobody out for long; one whose network is away keeps its nodes for a while"),
    Setting("LEASE_DURATION", "15s", "duration", "controller", "how long a leader's lease lasts unrenewed", "Kubernetes' own default for its controllers"),
    Setting("FAIRNESS_WINDOW", "60s", "duration", "controller", "how long a busy model may keep a waiting one out", "bounds both thrash and waits"),
    Setting("HOST_RESERVE", "1Gi", "bytes", "controller, agent", "host memory kept free where no Residency says", "the node's own daemons"),
    Setting("QUEUE_LIMIT", "1000", "number", "gateway", "requests that may wait for one model in one gateway", "bounds memory; more is 429"),
    Setting("QUEUE_TIMEOUT", "900s", "duration", "gateway", "longest wait of one request for its model", "as long as a load may take"),
    Setting("NONSTREAM_WAIT", "600s", "duration", "gateway", "longest wait of a request without a stream", "clients' own read timeout is ten minutes"),
    Setting("KEEPALIVE", "10s", "duration", "gateway", "pause between keepalive frames on a waiting stream", "load balancers cut at 60 s"),
    Setting("BODY_LIMIT", "32Mi", "bytes", "gateway", "largest request body", "images in base64 fit"),
    Setting("BODY_MEMORY", "64Mi", "bytes", "gateway", "memory for all request bodies together; what comes beyond it is kept on disk", "hundreds of waiting requests with images cost disk, not memory"),
    Setting("SPOOL_DIR", "", "text", "gateway", "folder for bodies beyond BODY_MEMORY", "empty: the system's temporary folder"),
    Setting("KEYS_FILE", "", "text", "gateway", "YAML file of API keys, read again when it changes", "empty, or no such file: everybody may use everything"),
    Setting("CATALOG_FILE", "", "text", "gateway", "file that keeps the last list of models and runners", "empty: a gateway that starts while the API server is away serves nothing"),
    Setting("USAGE_DIR", "", "text", "gateway", "folder for daily sums of requests and tokens by model and key", "empty: sums live as long as the process, in its metrics"),
    Setting("PUSH_URL", "", "text", "gateway", "URL that is told, by POST, of answers that have stopped coming", "empty: nobody is called"),
    Setting("STALL_AFTER", "120s", "duration", "gateway", "silence of an answer that counts as a stall", "as a runner's own limit for a hang"),
    Setting("GATEWAY_GRACE", "5s", "duration", "gateway", "how long a stopping gateway still takes new requests", "endpoint lists forget it meanwhile"),
    Setting("GATEWAY_DRAIN", "300s", "duration", "gateway", "longest wait of a stopping gateway for answers in flight", "as long as a runner's own drain"),
    Setting("HOST", "0.0.0.0", "text", "gateway", "address that the gateway listens on", "a pod has no other network"),
    Setting("PORT", "8080", "number", "gateway", "port that the gateway listens on", "not privileged"),
    Setting("HEALTH_PORT", "8081", "number", "controller, agent", "port of /healthz, /readyz and /metrics", "not privileged"),
    Setting("PROBE_INTERVAL", "5s", "duration", "agent", "pause between health checks of a runner", "C1"),
    Setting("DRAIN_PROBE_INTERVAL", "250ms", "duration", "agent", "pause between looks at a draining runner", "a drain ends soon after the last answer"),
    Setting("ADMISSION_TTL", "60s", "duration", "agent", "how long an admission lasts", "memory measured earlier says little"),
    Setting("PROC_ROOT", "/proc", "text", "agent", "where the host's proc file system is mounted", "the agent shares the host's process ids"),
    Setting("CGROUP_ROOT", "/sys/fs/cgroup", "text", "agent", "where the host's cgroups are mounted", "as on the host; the chart mounts it there"),
    Setting("HOST_ROOT", "", "text", "agent", "prefix below which host paths that Models name are mounted", "empty: at their own places"),
    Setting("DISK_BUDGET", "0", "bytes", "agent", "disk that fetched files may take on a node; what no runner uses goes beyond it, least recently used first; 0: as much as DISK_RESERVE leaves", "a disk of its own may be filled; a shared one has a bound"),
    Setting("DISK_RESERVE", "2Gi", "bytes", "agent", "disk kept free by fetches", "the node's own logs and images"),
)  # fmt: skip

_BY_NAME = {setting.name: setting for setting in REGISTRY}


class Settings:
    """The settings in effect, by name. Raises KeyError for a name that is not registered."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def text(self, name: str) -> str:
        setting = _BY_NAME[name]
        return self._environment.get(setting.variable) or setting.default

    def seconds(self, name: str) -> float:
        return parse_duration(self.text(name))

    def bytes(self, name: str) -> Bytes:
        return parse_quantity(self.text(name))

    def number(self, name: str) -> int:
        return int(self.text(name))

    def items(self, name: str) -> list[str]:
        """A list, written with commas."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]

    def describe(self) -> list[dict[str, str]]:
        """Every setting with its value in effect, for people and tests."""
        return [
            {
                "name": s.variable,
                "value": self.text(s.name),
                "default": s.default,
                "unit": s.unit,
                "readBy": s.read_by,
                "what": s.what,
                "why": s.why,
            }
            for s in REGISTRY
        ]
