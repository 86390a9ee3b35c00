"""Is the cluster that everything else is tested on a real one, and does it go without a trace?"""

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import images, model, network, whole
from cluster.stack import wait_until
from cluster.whole import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PORT = 8080
ENGINE = ["llama-server", "--host", "0.0.0.0", "--port", str(PORT), "-m", f"/m/{model.FILE_NAME}",
          "-c", "512", "-np", "1", "--cache-ram", "0"]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with whole.cluster(tmp_path_factory.mktemp("node")) as cluster:
        built = images.built(images.LLAMACPP)
        cluster.load_image(built.archive, reference=built.reference)
        cluster.plane.apply(*engine_and_service(built.reference))
        cluster.plane.kubectl("wait", "pod/engine", "--for=condition=Ready", "--timeout=60s")
        # The pod is ready before kube-proxy has its address in the node's rules.
        wait_until("the engine's Service answers", lambda: is_served(cluster), 60)
        yield cluster


def engine_and_service(image: str) -> list[dict[str, Any]]:
    metadata = {"name": "engine", "namespace": "default", "labels": {"app": "engine"}}
    container = {
        "name": "engine",
        "image": image,
        "command": ENGINE,
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "models", "mountPath": "/m", "readOnly": True}],
        "resources": {"requests": {"memory": "600Mi"}, "limits": {"memory": "900Mi"}},
    }
    volume = {"name": "models", "hostPath": {"path": str(model.gguf().parent)}}
    pod = {
        "securityContext": {"runAsNonRoot": True},
        "containers": [container],
        "volumes": [volume],
    }
    service = {"selector": {"app": "engine"}, "ports": [{"port": 80, "targetPort": PORT}]}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
    ]


def is_served(cluster: Cluster) -> bool:
    try:
        with urllib.request.urlopen(
            f"http://{service_address(cluster)}/health", timeout=5
        ) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def service_address(cluster: Cluster) -> str:
    return cluster.plane.kubectl("get", "service", "engine", "-o", "jsonpath={.spec.clusterIP}")


def test_a_real_engine_answers_through_its_service(cluster: Cluster):
    question = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    request = urllib.request.Request(
        f"http://{service_address(cluster)}/v1/chat/completions",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert answer["choices"][0]["message"]["content"]


def test_a_pod_finds_a_service_by_name(cluster: Cluster):
    ask = "import urllib.request as u; print(u.urlopen('http://engine.default.svc/health').status)"
    assert cluster.plane.kubectl("exec", "engine", "--", "python3", "-c", ask).strip() == "200"


def test_a_pod_reaches_the_api_server(cluster: Cluster):
    connect = (
        "import socket, os; a = os.environ['KUBERNETES_SERVICE_HOST'];"
        "socket.create_connection((a, 443), 5); print('reached')"
    )
    assert cluster.plane.kubectl("exec", "engine", "--", "python3", "-c", connect) == "reached\n"


def test_logs_and_exec_work(cluster: Cluster):
    assert "listening on" in cluster.plane.kubectl("logs", "engine")
    assert "uid=65532" in cluster.plane.kubectl("exec", "engine", "--", "id")


def test_the_api_server_comes_back_after_a_kill_and_pods_ran_on(cluster: Cluster):
    address = service_address(cluster)
    cluster.plane.kill("kube-apiserver")
    assert not cluster.plane.is_ready()
    with urllib.request.urlopen(f"http://{address}/health", timeout=5) as answer:
        assert answer.status == 200
    cluster.plane.restart("kube-apiserver")
    pod = json.loads(cluster.plane.kubectl("get", "pod", "engine", "-o", "json"))
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_asking_again_changes_nothing(cluster: Cluster):
    table = cluster.plane.processes
    before = [table.find(name) for name in table.names()]
    assert whole.up(cluster.plane.state_dir) == cluster
    assert [table.find(name) for name in table.names()] == before


def test_the_api_server_answers_on_this_host_only_where_it_is_meant_to(cluster: Cluster):
    """Its port is open on every address; the table of ours keeps others off it."""
    rules = network.run("nft", "list", "table", "inet", network.TABLE)
    assert f"tcp dport {cluster.plane.port} drop" in rules
    with socket.create_connection(("127.0.0.1", cluster.plane.port), timeout=5):
        pass


def test_down_leaves_nothing_behind(cluster: Cluster):
    """Ends the module's own cluster: the kernel's settings and the host's folders are as before."""
    state_dir, processes = cluster.plane.state_dir, cluster.plane.processes
    before = json.loads((state_dir / "kernel-settings.json").read_text())
    made = json.loads((state_dir / "made-folders.json").read_text())
    started = [found for name in processes.names() if (found := processes.find(name))]
    whole.down(state_dir)
    assert cluster.node.leftovers() == []
    assert [process for process in started if process.is_running] == []
    assert not state_dir.exists()
    assert {name: (Path("/proc/sys") / name).read_text().strip() for name in before} == before
    assert [path for path in made if Path(path).exists()] == []
