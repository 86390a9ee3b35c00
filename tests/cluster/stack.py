"""How is Berth run without a node? API server, controller and gateway are real; nodes, agents'
hosts and engines are played (``fakes.fleet``). This is `make api-up` and the api tests' cluster.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import controlplane, ports
from cluster.controlplane import CONTROLLER_MANAGER, KWOK, SCHEDULER, ControlPlane
from cluster.problem import Problem

CHECKOUT = Path(__file__).resolve().parents[2]
NAMESPACE = "berth-system"
START_DEADLINE_S = 60.0
GIB = 1 << 30


@dataclass(frozen=True)
class Stack:
    """A control plane with Berth's programs beside it."""

    plane: ControlPlane
    gateway_port: int
    hub_port: int
    fleet_port: int

    @property
    def endpoint(self) -> str:
        """The gateway's address."""
        return f"http://127.0.0.1:{self.gateway_port}"

    @property
    def hub(self) -> str:
        return f"http://127.0.0.1:{self.hub_port}"

    @property
    def hub_root(self) -> Path:
        """``ORG/NAME/FILE`` below it is a repository's file, ``files/…`` a plain one."""
        return self.plane.state_dir / "hub"

    @property
    def claims_root(self) -> Path:
        """``NAMESPACE/CLAIM/…`` below it are the files of a claim."""
        return self.plane.state_dir / "claims"

    def start_program(
        self, name: str, *, suffix: str = "", env: dict[str, str] | None = None
    ) -> None:
        """Start one of Berth's programs as a process; a second one with a ``suffix``."""
        command = [str(Path(sys.executable).with_name("berth")), name]
        self.plane.processes.start(
            f"{name}{suffix}",
            command,
            env=self.environment(f"{name}{suffix or '-0'}") | (env or {}),
        )

    def start_ended_programs(self) -> None:
        """What a kubelet does: a controller that lost its lease on a busy machine comes back."""
        for name in ("controller", "gateway"):
            self.start_program(name)

    def environment(self, pod: str) -> dict[str, str]:
        """What the chart would set, for programs that run beside the API server."""
        return {
            "KUBECONFIG": str(self.plane.kubeconfig),
            "PYTHONPATH": str(CHECKOUT / "tests"),
            "BERTH_POD_NAME": pod,
            "BERTH_NAMESPACE": NAMESPACE,
            "BERTH_PORT": str(self.gateway_port),
            "BERTH_HEALTH_PORT": str(ports.free(1)[0]),
            "BERTH_SOURCE_ALLOW": "127.0.0.0/8",
            "BERTH_HF_ENDPOINT": self.hub,
            "BERTH_RUNNER_IMAGES": ",".join(
                f"{runtime}/{hardware}=fake/{runtime}:{hardware}"
                for runtime in ("llamacpp", "vllm", "sglang")
                for hardware in ("cpu", "cuda")
            ),
            "BERTH_IMAGE_OPERATOR": "fake/operator",
            "FAKE_CLAIMS": str(self.claims_root),
            "BERTH_STORE_ROOT": str(self.plane.state_dir / "store"),
            # Tests of idle unloads would else wait for a minute and a half after every start.
            "BERTH_HEALTHY_BEFORE_UNLOAD": "3s",
        }

    def node(
        self,
        name: str,
        *,
        memory: int = 64 * GIB,
        gpus: str = "",
        labels: dict[str, str] | None = None,
    ) -> None:
        """A node that is not there: ``gpus`` such as ``2x24Gi`` or ``8Gi,16Gi``."""
        size = {"cpu": "32", "memory": str(memory), "pods": "110"}
        self.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {"kubernetes.io/hostname": name, **(labels or {})},
                    "annotations": {"kwok.x-k8s.io/node": "fake", "fake.berth.dev/gpus": gpus},
                },
                "status": {"capacity": size, "allocatable": size},
            }
        )

    def fault(self, path: str) -> None:
        """Ask the fleet for a fault: ``kill/NAMESPACE/POD``, ``foreign/NODE?host=…``, ``agent/NODE?run=false``."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.fleet_port}/{path}", data=b"", method="POST"
        )
        urllib.request.urlopen(request, timeout=5).close()

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """One object; {} when there is none."""
        text = self.plane.kubectl(
            "get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found"
        )
        return json.loads(text) if text else {}

    def every(self, kind: str, namespace: str = "default") -> list[dict[str, Any]]:
        return list(
            json.loads(self.plane.kubectl("get", kind, "-n", namespace, "-o", "json"))["items"]
        )

    def wait(self, what: str, check: Callable[[], Any], deadline_s: float = 30.0) -> Any:
        """The first truthy answer of ``check``; raises TimeoutError saying what it waited for."""
        return wait_until(what, check, deadline_s)

    def wait_state(
        self, model: str, state: str, namespace: str = "default", deadline_s: float = 30.0
    ) -> dict[str, Any]:
        """The Model once its Ready condition has this reason."""

        def check() -> dict[str, Any] | None:
            found = self.get("model", model, namespace)
            return found if state_of(found) == state else None

        try:
            return dict(self.wait(f"model {model} is {state}", check, deadline_s))
        except TimeoutError as err:
            err.add_note(
                json.dumps(self.get("model", model, namespace).get("status", {}), indent=1)
            )
            raise


def wait_until(what: str, check: Callable[[], Any], deadline_s: float) -> Any:
    """The first truthy answer of ``check``; raises TimeoutError saying what it waited for."""
    end = time.monotonic() + deadline_s
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.1)


def state_of(model: dict[str, Any]) -> str:
    """The reason of a Model's Ready condition."""
    for condition in model.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            return str(condition["reason"])
    return ""


def start(state_dir: Path, *, audit: bool = False, gateway_port: int = 0) -> Stack:
    """Start what is not running yet; asking again changes nothing."""
    plane = controlplane.start(
        state_dir,
        controlplane.Settings(components=(SCHEDULER, CONTROLLER_MANAGER, KWOK), audit=audit),
    )
    stack = _remembered(plane, gateway_port)
    _install(plane)
    stack.hub_root.mkdir(exist_ok=True)
    stack.claims_root.mkdir(exist_ok=True)
    python = [sys.executable, "-m"]
    plane.processes.start(
        "hub",
        [
            *python,
            "hub",
            "--root",
            str(stack.hub_root),
            "--port",
            str(stack.hub_port),
            "--cdn-host",
            "127.0.0.2",
        ],
        env=stack.environment("hub"),
    )
    plane.processes.start(
        "fleet",
        [*python, "fakes.fleet", "--port", str(stack.fleet_port)],
        env=stack.environment("fleet"),
    )
    stack.start_program("controller")
    stack.start_program("gateway")
    _wait_serving(stack)
    return stack


@contextmanager
def running(state_dir: Path, *, audit: bool = False) -> Iterator[Stack]:
    """A stack for the time of the block."""
    try:
        yield start(state_dir, audit=audit)
    finally:
        controlplane.stop_all(state_dir)


def _remembered(plane: ControlPlane, gateway_port: int) -> Stack:
    record = plane.state_dir / "stack.json"
    if not record.exists():
        free = ports.free(3)
        record.write_text(json.dumps([gateway_port or free[0], *free[1:]]))
    return Stack(plane, *json.loads(record.read_text()))


def _install(plane: ControlPlane) -> None:
    """What the chart installs that has to do with the API: CRDs, the namespace, the priority class."""
    plane.kubectl("apply", "--server-side", "-f", str(CHECKOUT / "crds"))
    plane.kubectl(
        "wait", "--for=condition=Established", "-f", str(CHECKOUT / "crds"), "--timeout=30s"
    )
    plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "berth-runner"},
            "value": 0,
            "preemptionPolicy": "Never",
        },
    )


def _wait_serving(stack: Stack) -> None:
    end = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{stack.endpoint}/v1/models", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            for name in ("controller", "gateway", "fleet", "hub"):
                _require_running(stack, name)
        time.sleep(0.1)
    raise Problem(
        f"the gateway does not answer at {stack.endpoint}",
        todo=f"read {stack.plane.processes.log('gateway')}",
    )


def _require_running(stack: Stack, name: str) -> None:
    if stack.plane.processes.is_running(name):
        return
    tail = subprocess.run(
        ["tail", "-n", "20", str(stack.plane.processes.log(name))],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    raise Problem(f"{name} ended at start:\n{tail}", todo="mend what it says and start again")
