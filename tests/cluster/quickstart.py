"""What does `make up` do, from an empty machine to the first answer of a model?

Each step leaves what is there already as it is, so that asking again is quick.
"""

import http.client
import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cluster import images, model, packages, ports, release, whole
from cluster.problem import Problem
from cluster.processes import ProcessTable
from cluster.progress import say
from cluster.release import NAMESPACE, Api
from cluster.whole import Cluster

EXAMPLE = images.CHECKOUT / "docs" / "examples" / "quickstart.yaml"
CRDS = release.CHART / "crds"
GATEWAY = "berth-gateway"
DEFAULT_PORT = 8088
ANSWER_DEADLINE_S = 300
QUESTION = "What is the capital of Portugal?"
EXAMPLES = (
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
)
"""A model this small continues a pattern better than it follows an instruction."""


def up_local(state_dir: Path, *, port: int = DEFAULT_PORT) -> None:
    """A cluster of our own on this machine, Berth in it, one answer."""
    cluster = whole.up(state_dir)
    api = Api(cluster.plane.state_dir, cluster.kubeconfig)
    _write_kubectl(api)
    values = release.load_images(cluster)
    hub = start_hub(cluster)
    values["settings"] = {
        "HF_ENDPOINT": hub,
        "SOURCE_ALLOW": f"{cluster.node.network.address}/32",
        # What is fetched goes with the cluster.
        "STORE_ROOT": str(cluster.node.folder / "store"),
    }
    values["agent"] = {"csi": {"kubeletDir": str(cluster.node.folder / "kubelet")}}
    release.install(api, values)
    apply_example(api)
    endpoint = forward(cluster, api, port=port)
    (cluster.plane.state_dir / "endpoint").write_text(f"{endpoint}\n")
    print(ask(endpoint))
    print(_next_steps(endpoint, cluster=cluster))


def up_current(state_dir: Path, values_file: Path | None) -> None:
    """Berth in the cluster that the user's kubeconfig points at; its images come from a registry."""
    state_dir.mkdir(parents=True, exist_ok=True)
    api = Api(state_dir)
    context = api.kubectl("config", "current-context").strip()
    say(f"installing into the current context, {context}")
    values = yaml.safe_load(values_file.read_text()) if values_file else {}
    release.install(api, values)
    apply_example(api)
    with _port_forward(api, state_dir) as endpoint:
        print(ask(endpoint))
    print(f"""
The endpoint, for as long as this runs:
  kubectl --namespace {NAMESPACE} port-forward service/{GATEWAY} {DEFAULT_PORT}:80""")


def apply_example(api: Api) -> None:
    """Applies it and waits until the model's header was read: what it needs is known then."""
    api.kubectl("apply", "--server-side", "-f", str(EXAMPLE))
    try:
        api.kubectl("wait", "--for=condition=HeaderRead", "-f", str(EXAMPLE), "--timeout=60s")
    except Problem as problem:
        seen = api.kubectl("get", "-f", str(EXAMPLE), "--output=wide")
        raise Problem(f"the model's header was not read\n{seen}", todo="see MESSAGE") from problem


def down_current(state_dir: Path) -> None:
    """Takes the example and the chart out of the user's cluster; its kinds stay, as Helm does it."""
    api = Api(state_dir)
    api.kubectl("delete", "--ignore-not-found", "-f", str(EXAMPLE))
    api.helm("uninstall", release.NAME, f"--namespace={NAMESPACE}", "--ignore-not-found", "--wait")
    shutil.rmtree(state_dir, ignore_errors=True)
    print(f"The kinds stay, and with them all Models. To remove both: kubectl delete -f {CRDS}")


def start_hub(cluster: Cluster) -> str:
    """A hub on the node's own address that has the example's files; the URL that pods reach it at."""
    table, folder = cluster.plane.processes, cluster.plane.state_dir / "hub"
    _fill_hub(folder)
    running = table.find("hub")
    if running is None or not running.is_running:
        port = running.argv[-1] if running else str(ports.free(1)[0])
        address = cluster.node.network.address
        command = [sys.executable, "-m", "hub", "--root", str(folder),
                   "--host", address, "--port", port]  # fmt: skip
        running = table.start("hub", command, env={"PYTHONPATH": str(images.CHECKOUT / "tests")})
        table.wait_until(
            lambda: "hub: http" in table.log("hub").read_text(),
            what="the hub listens", process="hub", deadline_s=20,
        )  # fmt: skip
    return f"http://{cluster.node.network.address}:{running.argv[-1]}"


def _fill_hub(folder: Path) -> None:
    """The small model under the name that the example asks the hub for."""
    for document in _example_models():
        source = document["spec"]["source"].get("huggingFace")
        for name in source["files"] if source else []:
            target = folder / source["repo"] / name
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model.gguf(), target)


def forward(cluster: Cluster, api: Api, *, port: int) -> str:
    """Makes the gateway's Service answer on loopback; the URL it answers at."""
    packages.ensure({"socat": "socat"})
    jsonpath = "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}"
    service = api.kubectl("get", "service", GATEWAY, f"--namespace={NAMESPACE}", "-o", jsonpath)
    command = ["socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay",
               f"TCP:{service},nodelay"]  # fmt: skip
    table = cluster.plane.processes
    running = table.find("forward")
    if running is None or not running.is_running or running.argv != command:
        table.stop("forward")
        ports.require_free(port, purpose="the gateway (make up PORT=…)")
        table.start("forward", command)
        table.wait_until(
            lambda: not ports.is_free(port),
            what=f"port {port} listens", process="forward", deadline_s=10,
        )  # fmt: skip
    return f"http://127.0.0.1:{port}"


def ask(endpoint: str) -> str:
    """The example's model's answer to one question, with how long it took; the first one loads it."""
    name = _example_models()[0]["metadata"]["name"]
    say(f"asking {name}; the first question loads it")
    question = {
        "model": name,
        "messages": _conversation(),
        "max_tokens": 40,
        "temperature": 0,
        # A model this small seldom ends by itself.
        "stop": ["<|im_end|>", "\n"],
    }
    began = time.monotonic()
    answer = _post(f"{endpoint}/v1/chat/completions", question)
    said = answer["choices"][0]["message"]["content"].strip()
    return f"\n> {QUESTION}\n{said}\n  ({name}, {time.monotonic() - began:.1f} s)"


def _conversation() -> list[dict[str, str]]:
    turns = [
        (role, text)
        for pair in EXAMPLES
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return [{"role": role, "content": text} for role, text in [*turns, ("user", QUESTION)]]


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_DEADLINE_S) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as err:
        raise Problem(
            f"the gateway answered {err.code}: {err.read().decode(errors='replace')}",
            todo="see `.berth/bin/kubectl describe models` for the reason",
        ) from err
    except (OSError, http.client.HTTPException) as err:
        raise Problem(f"the gateway did not answer: {err}", todo="see `make status`") from err


@contextmanager
def _port_forward(api: Api, state_dir: Path) -> Iterator[str]:
    table = ProcessTable(state_dir)
    port = ports.free(1)[0]
    table.start(
        "port-forward",
        [*api.kubectl_command(), f"--namespace={NAMESPACE}", "port-forward", f"service/{GATEWAY}",
         f"{port}:80"],
    )  # fmt: skip
    try:
        table.wait_until(
            lambda: "Forwarding from" in table.log("port-forward").read_text(),
            what="the gateway can be reached", process="port-forward", deadline_s=30,
        )  # fmt: skip
        yield f"http://127.0.0.1:{port}"
    finally:
        table.stop("port-forward")


def _example_models() -> list[dict[str, Any]]:
    documents = yaml.safe_load_all(EXAMPLE.read_text())
    return [document for document in documents if document and document["kind"] == "Model"]


def _write_kubectl(api: Api) -> None:
    """A kubectl that knows the cluster, for people who have none."""
    path = api.state_dir / "bin" / "kubectl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {" ".join(api.kubectl_command())} "$@"\n')
    path.chmod(0o755)


def _next_steps(endpoint: str, *, cluster: Cluster) -> str:
    state_dir, name = cluster.plane.state_dir, _example_models()[0]["metadata"]["name"]
    return f"""
  endpoint    {endpoint}/v1
  kubeconfig  {cluster.kubeconfig}

Three things to try:
  1. A stream:   curl -N {endpoint}/v1/chat/completions -H 'Content-Type: application/json' \\
                   -d '{{"model": "{name}", "stream": true, "messages": [{{"role": "user", "content": "Hi"}}]}}'
  2. What Berth knows and has loaded:   {state_dir}/bin/kubectl get models,runners --all-namespaces
  3. Unload it, ask again, see it come back:   KUBECONFIG={cluster.kubeconfig} .venv/bin/berth unload {name}
`make down` ends all of it."""
