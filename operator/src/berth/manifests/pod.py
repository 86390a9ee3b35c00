"""Which pod runs a Runner's engine?

One pod of one container, bound to its node by required affinity so that the scheduler still
judges it, with no right that Pod Security's ``restricted`` would refuse: its files are a volume of the node's
own driver. (A Model's own host path, and a cluster set to ``hostPath``, are the exceptions.) ``docs/design/0001-objects-and-flow.md`` says who reads what of it.
"""

import hashlib
import json
from dataclasses import dataclass

from berth.api.meta import (
    ANNOTATION_CLAIM,
    ANNOTATION_SPEC_HASH,
    GROUP,
    LABEL_MANAGED,
    LABEL_RUNNER,
    LABEL_RUNNER_UID,
    bytes_of,
)
from berth.api.profile import ComputeResources, PodTemplate
from berth.api.runner import Runner
from berth.manifests.lent import ATTRIBUTE, DRIVER, SESSIONS, WEIGHTS
from berth.manifests.names import Object, model_labels, owner_reference
from berth.manifests.sessions import SESSIONS_PATH, session_folder
from berth.units import GiB, MiB

CONTAINER = "engine"
MODELS_PATH = "/models"
"""Where the container finds the files of ``spec.files``."""
CONTROL_PORT = 8090
HEAD_VARIABLE = "BERTH_HEAD"
HEAD_ADDRESS = f"$({HEAD_VARIABLE})"
"""The address of a group's head in an argument: the kubelet puts the variable in its place."""
SESSION_S = 60
"""What a drain may take for saving sessions, after its own timeout."""
STOP_S = 20
"""From SIGTERM to SIGKILL of the engine."""
GRACE_EXTRA_S = SESSION_S + 30
_USER = 65532
"""Any number but 0 will do; this one is what images without a user of their own agree on."""
_TMP = {"sizeLimit": str(4 * GiB)}
"""The only folder that an engine can write to; bounded, for it is the node's disk."""


@dataclass(frozen=True)
class PodSettings:
    """What every runner pod of a cluster shares. Empty texts leave the field out."""

    store_root: str = "/var/lib/berth"
    store_volume: str = "csi"
    """``csi`` or ``hostPath``."""
    runtime_class: str = ""
    """Of pods that get a GPU."""
    service_account: str = ""
    priority_class: str = "berth-runner"
    log_level: str = "info"
    quiet_s: float = 2.0
    session_limit: int = 8 * GiB
    """Bytes that one runner's saved sessions may take on its node's disk."""


_DEFAULTS = PodSettings()


def runner_pod(
    runner: Runner, settings: PodSettings = _DEFAULTS, *, head_address: str = ""
) -> Object:
    """The pod of a Runner: same name and namespace, owned by it.

    ``head_address``: of the head's pod, for the other members of a group.
    """
    template = runner.spec.pod_template or PodTemplate()
    spec = _spec(runner, settings, template)
    if runner.spec.group is not None:
        # First, for what comes later may refer to it.
        spec["containers"][0]["env"].insert(0, _head_variable(head_address))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": runner.metadata.name,
            "namespace": runner.metadata.namespace,
            "labels": _allowed(template.labels) | _labels(runner),
            "annotations": _allowed(template.annotations)
            | {
                ANNOTATION_CLAIM: _compact(runner.spec.claim.wire()),
                ANNOTATION_SPEC_HASH: spec_hash(spec),
            },
            "ownerReferences": [owner_reference(runner)],
        },
        "spec": spec,
    }


def _head_variable(address: str) -> Object:
    """The head knows its own address once it has one; the others are told."""
    if address:
        return {"name": HEAD_VARIABLE, "value": address}
    own = {"fieldRef": {"fieldPath": "status.podIP"}}
    return {"name": HEAD_VARIABLE, "valueFrom": own}


def spec_hash(spec: Object) -> str:
    """16 hex digits over a desired spec; the order of keys does not matter. Live fields never enter."""
    return hashlib.sha256(_compact(spec).encode()).hexdigest()[:16]


def grace_seconds(runner: Runner) -> int:
    """``terminationGracePeriodSeconds``: the drain, the sessions, and time to stop the engine."""
    return runner.spec.drain_timeout_seconds + GRACE_EXTRA_S


def control_port(runner: Runner) -> int:
    """The port of the runner program's own ``/health``; out of the engine's way."""
    return CONTROL_PORT if runner.spec.port != CONTROL_PORT else CONTROL_PORT + 1


def runner_config(runner: Runner, settings: PodSettings = _DEFAULTS) -> Object:
    """What ``BERTH_RUNNER`` says; ``berth.runner.config`` reads it."""
    spec = runner.spec
    sessions = {"folder": SESSIONS_PATH, "limit": settings.session_limit}
    return ({"sessions": sessions} if session_folder(runner) else {}) | {
        "engine": list(spec.command),
        "port": spec.port,
        "controlPort": control_port(runner),
        "env": {variable.name: variable.value for variable in spec.env},
        "busyProbe": spec.runtime,
        "hostNeed": spec.claim.host,
        "devices": [{"uuid": d.device, "need": d.memory} for d in spec.claim.devices],
        # A size that nobody could tell beforehand cannot be compared.
        "files": [
            {"path": f"{MODELS_PATH}/{file.name}", "size": file.size}
            for file in spec.files
            if file.size
        ],
        "dropCache": _read_once(runner),
        **_smoke(runner),
        **_looks(runner),
        **_without_api(runner),
        "quiet": settings.quiet_s,
        "drainTimeout": 0 if runner.is_part else spec.drain_timeout_seconds,
        "sessionTime": SESSION_S,
        "stopTimeout": STOP_S,
        "terminationGrace": grace_seconds(runner),
    }


def _without_api(runner: Runner) -> Object:
    """A member that is not the head answers nobody: it is up once it runs, and idle when told to go."""
    return {"healthPath": "", "busyProbe": "none"} if runner.is_part else {}


def _smoke(runner: Runner) -> Object:
    test = runner.spec.smoke_test
    if test is None:
        return {}
    said = {"path": test.path, "body": test.body, "expect": test.expect}
    return {"smoke": said | {"timeout": test.timeout_seconds, "asked": test.asked}}


def _looks(runner: Runner) -> Object:
    """What the program is told beside its plain keys. What it does not know of ``optional`` it leaves alone, so
    that an image older than the controller still starts."""
    engine = runner.spec.engine
    found: Object = {}
    if runner.spec.pre_exec:
        found["preExec"] = [list(step) for step in runner.spec.pre_exec]
    if engine is None:
        return found
    if engine.health_path != "/health":
        found["healthPath"] = engine.health_path
    metrics = engine.metrics
    optional = {"versions": engine.versions} | (
        {"metrics": {"path": metrics.path, "busy": metrics.busy}} if metrics else {}
    )
    return found | {"optional": optional}


def _read_once(runner: Runner) -> list[str]:
    """Files that the engine has copied once it is up and never reads again.

    With more file pages claimed than are kept warm it has mapped its weights: none are dropped.
    """
    claim, kept = runner.spec.claim, set(runner.spec.keep_warm)
    warm = sum(file.size for file in runner.spec.files if file.name in kept)
    if claim.host_file_pages + claim.host_copied > warm:
        return []
    return [f"{MODELS_PATH}/{file.name}" for file in runner.spec.files if file.name not in kept]


def _spec(runner: Runner, settings: PodSettings, template: PodTemplate) -> Object:
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(runner),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _affinity(runner.spec.node_name, template.affinity or {}),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(runner, settings)],
        "volumes": [
            _models_volume(runner, settings),
            {"name": "tmp", "emptyDir": _TMP},
            *_sessions_volume(runner, settings),
        ],
    }
    return spec | _placement(runner, template) | _classes(runner, settings, template)


def _placement(runner: Runner, template: PodTemplate) -> Object:
    tolerations = [t.wire() for t in (*runner.spec.tolerations, *template.tolerations)]
    secrets = [{"name": name} for name in template.image_pull_secrets]
    return _present(
        nodeSelector=dict(runner.spec.node_selector),
        tolerations=tolerations,
        imagePullSecrets=secrets,
    )


def _classes(runner: Runner, settings: PodSettings, template: PodTemplate) -> Object:
    has_gpu = bool(runner.spec.claim.devices)
    priority = template.priority_class_name or settings.priority_class
    return _present(
        serviceAccountName=settings.service_account,
        runtimeClassName=template.runtime_class_name or (settings.runtime_class if has_gpu else ""),
        priorityClassName=priority,
        # Making room is the planner's work: a class that preempts is refused at the API server.
        preemptionPolicy="Never" if priority else "",
    )


def _affinity(node: str, asked: Object) -> Object:
    """What the profile asks for, and this node: terms are alternatives, so each gets the node."""
    this_node = {"key": "metadata.name", "operator": "In", "values": [node]}
    node_affinity = dict(asked.get("nodeAffinity") or {})
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
        "nodeSelectorTerms": [
            term | {"matchFields": [*term.get("matchFields", []), this_node]}
            for term in required.get("nodeSelectorTerms") or [{}]
        ]
    }
    return asked | {"nodeAffinity": node_affinity}


def _container(runner: Runner, settings: PodSettings) -> Object:
    return {
        "name": CONTAINER,
        "image": runner.spec.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "berth.runner"],
        "env": _environment(runner, settings),
        "ports": [
            {"name": "http", "containerPort": runner.spec.port},
            {"name": "control", "containerPort": control_port(runner)},
        ],
        # The one probe: the node's agent is the one supervisor (no liveness, no start-up probe).
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": "control"},
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "resources": resources(runner),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "models", "mountPath": MODELS_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *([{"name": "sessions", "mountPath": SESSIONS_PATH}] if session_folder(runner) else []),
        ],
    }


def _environment(runner: Runner, settings: PodSettings) -> list[Object]:
    """The container's own variables; a Runner's ``env`` goes to the engine alone, not to the
    program that guards it nor to the container runtime, which takes devices from here.
    """
    devices = ",".join(claim.device for claim in runner.spec.claim.devices)
    values = {
        "BERTH_RUNNER": _compact(runner_config(runner, settings)),
        "BERTH_LOG_LEVEL": settings.log_level,
        "HOME": "/tmp",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": devices or "void",
        # Engines never fetch for themselves.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def resources(runner: Runner) -> Object:
    """Requests and limits: the claim, and 5 % (at least 512 MiB) above it, unless the profile says.

    A profile that names either of the two for memory takes over the limit: none is invented
    beside a request that somebody chose.
    """
    asked = runner.spec.resources or ComputeResources()
    requests, limits = dict(asked.requests), dict(asked.limits)
    host = runner.spec.claim.host
    if "memory" not in requests:
        if "memory" not in limits:
            limits["memory"] = str(host + max(host // 20, 512 * MiB))
        # The API server refuses a request above its limit.
        requests["memory"] = str(min(host, bytes_of(limits["memory"])))
    return _present(requests=requests, limits=limits)


def _models_volume(runner: Runner, settings: PodSettings) -> Object:
    """The node's store, a directory of the node, or a claim; the container sees it read-only."""
    mount = runner.spec.mount
    if mount is not None and mount.persistent_volume_claim:
        claim = {"claimName": mount.persistent_volume_claim, "readOnly": True}
        return {"name": "models", "persistentVolumeClaim": claim}
    path = mount.host_path if mount is not None else None
    if not path and settings.store_volume == "csi":
        return _lent("models", WEIGHTS, read_only=True)
    stored = f"{settings.store_root}/runners/{runner.metadata.uid}"
    return {"name": "models", "hostPath": {"path": path or stored, "type": "Directory"}}


def _sessions_volume(runner: Runner, settings: PodSettings) -> list[Object]:
    """The one folder of the node that a runner may write to, where it keeps sessions."""
    folder = session_folder(runner)
    if not folder:
        return []
    if settings.store_volume == "csi":
        return [_lent("sessions", SESSIONS, read_only=False)]
    path = f"{settings.store_root}/sessions/{folder}"
    return [{"name": "sessions", "hostPath": {"path": path, "type": "Directory"}}]


def _lent(name: str, volume: str, *, read_only: bool) -> Object:
    """A volume of the node's driver: what the agent has lent to this very pod."""
    attributes = {ATTRIBUTE: volume}
    csi = {"driver": DRIVER, "readOnly": read_only, "volumeAttributes": attributes}
    return {"name": name, "csi": csi}


def _labels(runner: Runner) -> dict[str, str]:
    return model_labels(runner.spec.model_ref.name) | {
        LABEL_RUNNER: runner.metadata.name,
        LABEL_RUNNER_UID: runner.metadata.uid,
    }


def _allowed(asked: dict[str, str]) -> dict[str, str]:
    """A profile's labels or annotations without those that Berth itself reads."""
    return {
        key: value
        for key, value in asked.items()
        if not key.startswith(f"{GROUP}/") and key != LABEL_MANAGED
    }


def _present(**fields: object) -> Object:
    """The fields that say something."""
    return {name: value for name, value in fields.items() if value}


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
