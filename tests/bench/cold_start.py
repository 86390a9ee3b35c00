"""How long does the first token of a model that is not loaded take, beside the engine alone?

``python tests/bench/cold_start.py [--state DIR] [--model NAME] [--rounds N]`` on the cluster of
``make up``. In each round, with the model unloaded,

- its runner's pod runs by hand, without Berth: same image, flags, files, limits and node, but a small
  program in the runner's place, which starts the engine and times it from exec to the first token;
- the same request goes through the gateway, timed from its first byte to the first token: Demand, plan,
  admission, pod, container, engine.

``ratio cold-start`` is the median of Berth's seconds over the median of the engine's. The file is in the
page cache on both sides.
"""

import argparse
import http.client
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from berth.api.meta import ANNOTATION_UNLOAD, LABEL_MODEL
from cluster import images, whole
from cluster.problem import Problem
from cluster.stack import wait_until
from cluster.whole import Cluster

FIGURE, GOAL = "cold-start", 1.5
DEADLINE_S = 120.0
POD = "bench-engine-alone"
Object = dict[str, Any]

ALONE = """
import http.client, json, os, subprocess, time

told = json.loads(os.environ["BERTH_RUNNER"])
began = time.monotonic()
engine = subprocess.Popen(told["engine"], env={**os.environ, **told["env"]}, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)

def token(line):
    said = line.removeprefix(b"data: ").strip()
    if not line.startswith(b"data: ") or said == b"[DONE]":
        return ""
    return (json.loads(said)["choices"] or [{}])[0].get("delta", {}).get("content")

def first_token():
    link = http.client.HTTPConnection("127.0.0.1", told["port"], timeout=60)
    headers = {"Content-Type": "application/json"}
    link.request("POST", "/v1/chat/completions", os.environ["BENCH_REQUEST"], headers)
    answer = link.getresponse()
    return answer.status == 200 and any(token(line) for line in answer)

while engine.poll() is None:
    try:
        if first_token():
            print(json.dumps({"seconds": time.monotonic() - began}), flush=True)
            break
    except OSError:
        pass
    time.sleep(0.01)
engine.kill()
"""
"""What runs in the pod in the runner program's place."""


@dataclass(frozen=True)
class Place:
    """The cluster, and the model that is asked."""

    cluster: Cluster
    endpoint: str
    model: str
    namespace: str

    @property
    def request(self) -> str:
        question = [{"role": "user", "content": "Say hello."}]
        body = {"model": self.model, "messages": question, "max_tokens": 4, "stream": True}
        return json.dumps(body)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.plane.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def get(self, *arguments: str) -> Object:
        return dict(json.loads(self.kubectl("get", *arguments, "-o", "json")))

    def pods(self) -> list[Object]:
        return list(self.get("pods", "-l", f"{LABEL_MODEL}={self.model}")["items"])


def find(state_dir: Path, model: str) -> Place:
    """The cluster of ``make up``. Raises Problem when it is not up."""
    endpoint = state_dir / "endpoint"
    if not endpoint.exists() or not (state_dir / "controlplane.json").exists():
        raise Problem("no whole node is up", todo="run `make up`")
    cluster = whole.running(state_dir)
    if not cluster.plane.is_ready():
        raise Problem("the cluster of `make up` does not answer", todo="run `make up`")
    return Place(cluster, endpoint.read_text().strip(), model, "default")


# -- through Berth --------------------------------------------------------------------------------


def through_gateway(place: Place) -> float:
    """Seconds from the request to its first token."""
    address = urlsplit(place.endpoint)
    link = http.client.HTTPConnection(
        str(address.hostname), int(address.port or 80), timeout=DEADLINE_S
    )
    began = time.monotonic()
    headers = {"Content-Type": "application/json"}
    link.request("POST", "/v1/chat/completions", place.request, headers)
    answer = link.getresponse()
    if answer.status != http.client.OK:
        raise Problem(
            f"the gateway answered {answer.status}: {answer.read(500)!r}",
            todo="see `berth explain`",
        )
    _await_token(answer)
    took = time.monotonic() - began
    answer.read()
    link.close()
    return took


def _await_token(lines: Iterable[bytes]) -> None:
    """Read up to the first token: the empty chunks before it only keep the connection alive."""
    for line in lines:
        said = line.removeprefix(b"data: ").strip()
        if not line.startswith(b"data: ") or said == b"[DONE]":
            continue
        chunk = json.loads(said)
        if "error" in chunk:
            raise Problem(f"the load failed: {chunk['error']}", todo="see `berth explain`")
        if (chunk.get("choices") or [{}])[0].get("delta", {}).get("content"):
            return
    raise Problem("the answer ended without a token", todo="see the runner's log")


def unload(place: Place) -> None:
    """Unload by hand, and wait until nothing of it is left."""
    value = str(time.time_ns())
    place.kubectl("annotate", "model", place.model, "--overwrite", f"{ANNOTATION_UNLOAD}={value}")

    def is_gone() -> bool:
        status = place.get("model", place.model).get("status", {})
        handled = status.get("unloadHandled") == value
        return handled and not status.get("runners") and not place.pods()

    wait_until(f"{place.model} is unloaded", is_gone, DEADLINE_S)


# -- the engine alone -----------------------------------------------------------------------------


def keep_files(place: Place, pod: Object) -> Path:
    """The runner's files under another name on the same disk: they go with the Runner, these do not."""
    mounted = next(v for v in pod["spec"]["volumes"] if v["name"] == "models")
    if "hostPath" not in mounted:
        raise Problem(f"{place.model} is not read from the node's store", todo="name another model")
    source = Path(mounted["hostPath"]["path"])
    target = source.parent.parent / "bench"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o755)
    for file in source.iterdir():
        os.link(file.resolve(), target / file.name)
    return target


def alone_pod(place: Place, pod: Object, files: Path) -> Object:
    """The runner's pod with our program in it, and nothing by which Berth would know it."""
    kept = ("affinity", "securityContext", "tolerations", "restartPolicy")
    engine = dict(pod["spec"]["containers"][0])
    for name in ("readinessProbe", "ports"):
        engine.pop(name, None)
    engine["command"] = ["python3", "-c", ALONE]
    engine["env"] = [*engine["env"], {"name": "BENCH_REQUEST", "value": place.request}]
    volumes = [v for v in pod["spec"]["volumes"] if v["name"] != "models"]
    mounted = {"name": "models", "hostPath": {"path": str(files), "type": "Directory"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": place.namespace},
        "spec": {name: pod["spec"][name] for name in kept if name in pod["spec"]}
        | {
            "containers": [engine],
            "volumes": [*volumes, mounted],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
        },
    }


def alone(place: Place, body: Object) -> float:
    """Seconds from the engine's exec to its first token, in a pod of its own."""
    place.kubectl("create", "-f", "-", stdin=json.dumps(body))
    try:
        wait_until("the engine alone has answered", lambda: _ended(place), DEADLINE_S)
        log = place.kubectl("logs", POD)
    finally:
        place.kubectl("delete", "pod", POD, "--ignore-not-found", "--wait=true")
    try:
        return float(json.loads(log.splitlines()[-1])["seconds"])
    except (ValueError, IndexError) as err:
        raise Problem(f"the engine alone gave no token: {log[-500:]}", todo="see why") from err


def _ended(place: Place) -> bool:
    return place.get("pod", POD).get("status", {}).get("phase") in ("Succeeded", "Failed")


# -- the whole ------------------------------------------------------------------------------------


def compare(place: Place, rounds: int) -> float:
    """Berth's seconds over the engine's, the medians of the rounds."""
    through_gateway(place)
    pod = place.pods()[0]
    files = keep_files(place, pod)
    body, engine, berth = alone_pod(place, pod, files), [], []
    try:
        for _ in range(rounds):
            unload(place)
            engine.append(alone(place, body))
            berth.append(through_gateway(place))
            print(f"# the engine alone {engine[-1]:.2f} s, through Berth {berth[-1]:.2f} s")
    finally:
        shutil.rmtree(files, ignore_errors=True)
    return statistics.median(berth) / statistics.median(engine)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, default=images.CHECKOUT / ".berth")
    parser.add_argument("--model", default="gemma")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    try:
        place = find(options.state.resolve(), options.model)
        print(f"ratio {FIGURE} {compare(place, options.rounds):.2f} goal {GOAL:g}")
    except (Problem, OSError, http.client.HTTPException, SubprocessError) as err:
        print(f"skip {FIGURE}: {err} {' '.join(getattr(err, '__notes__', ()))}".rstrip())
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
