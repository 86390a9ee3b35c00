"""How is a real API server started, used and ended, with nothing but its own folder touched?

etcd and kube-apiserver are up in a few seconds; the controller manager, the scheduler and kwok
come along where they are asked for. Several can run side by side on one machine.
"""

import http.client
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cluster import build, certs, packages, ports
from cluster.problem import Problem
from cluster.processes import ProcessTable

SERVICE_CIDR = "10.46.0.0/16"
SERVICE_IP = "10.46.0.1"
"""The address of the `kubernetes` Service: the first of the range, as the API server picks it."""
START_DEADLINE_S = 60
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KWOK = "kwok"


@dataclass(frozen=True)
class Settings:
    """What differs between one control plane and another."""

    components: Sequence[str] = ()
    """Beside etcd and the API server: kube-controller-manager, kube-scheduler, kwok."""
    audit: bool = False
    """Write one JSON line a request (metadata only) to `ControlPlane.audit_log`."""
    apiserver_args: Sequence[str] = ()
    """Further flags, such as --runtime-config or --feature-gates."""
    advertise: str = ""
    """The address that pods reach the API server on; empty where there are no pods."""
    port: int = 0
    """The API server's port; 0 picks a free one."""


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane; everything of it lies below `state_dir`."""

    state_dir: Path
    port: int
    etcd_port: int
    etcd_peer_port: int
    settings: Settings = field(default_factory=Settings)

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        """For an administrator (group system:masters)."""
        return self.state_dir / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.state_dir / "log" / "audit.jsonl"

    @property
    def authority(self) -> certs.Authority:
        return certs.Authority(self.state_dir / "pki", "ca")

    @property
    def processes(self) -> ProcessTable:
        return ProcessTable(self.state_dir)

    def kubeconfig_for(self, user: str, *, groups: Sequence[str] = (), server: str = "") -> Path:
        """A kubeconfig for a user known by a client certificate; the same again when asked again."""
        return certs.write_kubeconfig(
            self.state_dir / "kubeconfigs" / user.replace(":", "_").replace("/", "_"),
            server=server or self.server,
            authority=self.authority,
            client=self.authority.issue(user, groups=groups),
        )

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """What kubectl prints; raises CalledProcessError (its stderr in the notes) on failure."""
        command = [str(build.binary(build.KUBE)), "kubectl", "--kubeconfig", str(self.kubeconfig)]
        answer = subprocess.run(
            [*command, *args], input=stdin, capture_output=True, text=True, check=False
        )
        try:
            answer.check_returncode()
        except subprocess.CalledProcessError as err:
            err.add_note(answer.stderr)
            raise
        return answer.stdout

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Applies objects through server-side apply as the field manager `tests`."""
        whole = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl(
            "apply", "--server-side", "--field-manager=tests", "-f", "-", stdin=json.dumps(whole)
        )

    def is_ready(self) -> bool:
        return _ask(self, "/readyz") == http.client.OK

    def stop(self, component: str) -> None:
        self.processes.stop(component)

    def kill(self, component: str) -> None:
        """SIGKILL, as a crash; `restart` brings it back with the same arguments."""
        self.processes.kill(component)

    def restart(self, component: str) -> None:
        """Ends it in good order if it runs, starts it again, waits until the API server is ready."""
        # An API server ends only after its watchers have left, which they do not do by themselves.
        self.processes.restart(component, grace_s=2)
        self.wait_ready()

    def wait_ready(self) -> None:
        self.processes.wait_until(
            self.is_ready,
            what="the API server is ready",
            process="kube-apiserver",
            deadline_s=START_DEADLINE_S,
        )

    def audited(self) -> Iterator[dict[str, Any]]:
        """The audit log's entries so far, oldest first."""
        for line in self.audit_log.read_text().splitlines():
            yield json.loads(line)


@contextmanager
def control_plane(state_dir: Path, settings: Settings | None = None) -> Iterator[ControlPlane]:
    """A control plane for the time of the block; its folder is removed afterwards."""
    try:
        yield start(state_dir, settings or Settings())
    finally:
        stop_all(state_dir)
        shutil.rmtree(state_dir, ignore_errors=True)


def start(state_dir: Path, settings: Settings) -> ControlPlane:
    """Starts what is not running yet; asking again with the same folder changes nothing."""
    packages.ensure(packages.CONTROL_PLANE)
    plane = _remembered(state_dir) or _planned(state_dir, settings)
    plane.authority.ensure()
    _write_kubeconfigs(plane)
    plane.processes.start("etcd", _etcd_command(plane))
    plane.processes.start("kube-apiserver", _apiserver_command(plane))
    # Not before their rights exist: the controller manager ends for good when it is refused.
    plane.wait_ready()
    for component in plane.settings.components:
        plane.processes.start(component, _component_command(plane, component))
    return plane


def stop_all(state_dir: Path) -> None:
    """Ends every program of this folder: whatever uses the API server first, etcd last."""
    table = ProcessTable(state_dir)
    last = ["kube-apiserver", "etcd"]
    for name in [name for name in table.names() if name not in last] + last:
        table.stop(name)


def _planned(state_dir: Path, settings: Settings) -> ControlPlane:
    state_dir.mkdir(parents=True, exist_ok=True)
    state_dir.chmod(0o700)
    port, etcd_port, etcd_peer_port = ports.free(3)
    if settings.port:
        ports.require_free(settings.port, purpose="the API server")
        port = settings.port
    plane = ControlPlane(state_dir.resolve(), port, etcd_port, etcd_peer_port, settings)
    _record(plane).write_text(json.dumps(asdict(plane) | {"state_dir": str(plane.state_dir)}))
    return plane


def _remembered(state_dir: Path) -> ControlPlane | None:
    """The control plane that was planned in this folder, with its ports."""
    path = state_dir / "controlplane.json"
    if not path.exists():
        return None
    said = json.loads(path.read_text())
    kept = said.pop("settings")
    settings = Settings(**kept | {k: tuple(v) for k, v in kept.items() if isinstance(v, list)})
    return ControlPlane(**said | {"state_dir": state_dir.resolve(), "settings": settings})


def running(state_dir: Path) -> ControlPlane:
    """The control plane of a folder; raises Problem if none was started there."""
    plane = _remembered(state_dir)
    if plane is None:
        raise Problem(f"no cluster was started in {state_dir}", todo="run `make up`")
    return plane


def _record(plane: ControlPlane) -> Path:
    return plane.state_dir / "controlplane.json"


def _write_kubeconfigs(plane: ControlPlane) -> None:
    if not plane.kubeconfig.exists():
        certs.write_kubeconfig(
            plane.kubeconfig,
            server=plane.server,
            authority=plane.authority,
            client=plane.authority.issue("admin", groups=["system:masters"]),
        )
    for component in (CONTROLLER_MANAGER, SCHEDULER):
        plane.kubeconfig_for(f"system:{component}")
    plane.kubeconfig_for(KWOK, groups=["system:masters"])


def _etcd_command(plane: ControlPlane) -> list[str]:
    authority = certs.Authority(plane.state_dir / "pki" / "etcd", "ca")
    authority.ensure()
    pair = authority.issue("etcd", hosts=["127.0.0.1", "localhost"])
    client, peer = (
        f"https://127.0.0.1:{plane.etcd_port}",
        f"https://127.0.0.1:{plane.etcd_peer_port}",
    )
    return [
        "etcd", "--name=berth", f"--data-dir={plane.state_dir / 'etcd'}",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=berth={peer}",
        f"--cert-file={pair.cert}", f"--key-file={pair.key}",
        f"--trusted-ca-file={authority.pair.cert}", "--client-cert-auth",
        f"--peer-cert-file={pair.cert}", f"--peer-key-file={pair.key}",
        f"--peer-trusted-ca-file={authority.pair.cert}", "--peer-client-cert-auth",
        "--auto-compaction-retention=1", "--logger=zap", "--log-outputs=stderr", "--log-level=warn",
    ]  # fmt: skip


def _apiserver_command(plane: ControlPlane) -> list[str]:
    pki, settings = plane.state_dir / "pki", plane.settings
    etcd = certs.Authority(pki / "etcd", "ca")
    etcd_client = etcd.issue("kube-apiserver")
    hosts = ["127.0.0.1", SERVICE_IP, "localhost", "kubernetes", "kubernetes.default",
             "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]  # fmt: skip
    serving = plane.authority.issue(
        "kube-apiserver", hosts=hosts + ([settings.advertise] if settings.advertise else [])
    )
    kubelet = plane.authority.issue("kube-apiserver-kubelet-client", groups=["system:masters"])
    signing_key = certs.service_account_key(pki)
    return [
        str(build.binary(build.KUBE)), "kube-apiserver",
        f"--secure-port={plane.port}",
        *_listening(settings),
        f"--etcd-servers=https://127.0.0.1:{plane.etcd_port}",
        f"--etcd-cafile={etcd.pair.cert}", f"--etcd-certfile={etcd_client.cert}",
        f"--etcd-keyfile={etcd_client.key}",
        f"--tls-cert-file={serving.cert}", f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={plane.authority.pair.cert}",
        f"--kubelet-client-certificate={kubelet.cert}", f"--kubelet-client-key={kubelet.key}",
        f"--kubelet-certificate-authority={plane.authority.pair.cert}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={signing_key}",
        f"--service-account-signing-key-file={signing_key}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true", "--profiling=false",
        # Streamed lists need an etcd newer than Debian's; kwok does not fall back by itself.
        "--feature-gates=WatchList=false",
        *_auditing(plane),
        *settings.apiserver_args,
    ]  # fmt: skip


def _listening(settings: Settings) -> list[str]:
    if not settings.advertise:
        # No pod can reach it, so the `kubernetes` Service gets no endpoint: loopback is refused there.
        return ["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none"]  # fmt: skip
    return ["--bind-address=0.0.0.0", f"--advertise-address={settings.advertise}"]


def _auditing(plane: ControlPlane) -> list[str]:
    if not plane.settings.audit:
        return []
    policy = plane.state_dir / "audit-policy.json"
    rules = [{"level": "Metadata", "omitStages": ["RequestReceived", "ResponseStarted"]}]
    policy.write_text(
        json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules})
    )
    plane.audit_log.parent.mkdir(parents=True, exist_ok=True)
    # Blocking, so that a request that was answered is in the log.
    return [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={plane.audit_log}",
        "--audit-log-mode=blocking",
    ]


def _component_command(plane: ControlPlane, component: str) -> list[str]:
    if component == KWOK:
        return _kwok_command(plane)
    kube = str(build.binary(build.KUBE))
    kubeconfig = plane.state_dir / "kubeconfigs" / f"system_{component}"
    common = [
        kube, component,
        f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1", f"--secure-port={ports.free(1)[0]}",
        f"--cert-dir={plane.state_dir / 'pki' / component}",
        "--leader-elect=false", "--profiling=false",
    ]  # fmt: skip
    if component == SCHEDULER:
        return common
    authority = plane.authority.pair
    return [
        *common,
        f"--cluster-signing-cert-file={authority.cert}",
        f"--cluster-signing-key-file={authority.key}",
        f"--root-ca-file={authority.cert}",
        f"--service-account-private-key-file={certs.service_account_key(plane.state_dir / 'pki')}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--use-service-account-credentials=true",
        # It makes the folder that it is told, which would otherwise lie outside ours.
        f"--flex-volume-plugin-dir={plane.state_dir / 'volume-plugins'}",
    ]


def _kwok_command(plane: ControlPlane) -> list[str]:
    """Nodes with the annotation kwok.x-k8s.io/node=fake stay ready; their pods are not touched."""
    return [
        str(build.binary(build.KWOK)),
        f"--kubeconfig={plane.state_dir / 'kubeconfigs' / KWOK}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--config={Path(__file__).with_name('kwok-stages.yaml')}",
        "--cidr=10.47.0.0/16",
        "--node-ip=127.0.0.1",
        "--node-lease-duration-seconds=40",
        f"--server-address=127.0.0.1:{ports.free(1)[0]}",
    ]


def _ask(plane: ControlPlane, path: str) -> int | None:
    """The HTTP status that the API server answers an administrator with; None if it is away."""
    admin = plane.authority.issue("admin", groups=["system:masters"])
    context = ssl.create_default_context(cafile=str(plane.authority.pair.cert))
    context.load_cert_chain(admin.cert, admin.key)
    connection = http.client.HTTPSConnection("127.0.0.1", plane.port, timeout=2, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
