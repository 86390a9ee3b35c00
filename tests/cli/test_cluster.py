"""Do commands find, ask and wait, on a real API server with a controller played by hand?"""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

pytestmark = pytest.mark.api


@pytest.fixture
def ask(berth, plane):
    """`berth` on this cluster, in a thread of its own, so that a test can play the controller."""
    with ThreadPoolExecutor(max_workers=1) as pool:

        def call(*args):
            return pool.submit(berth, *args, "--kubeconfig", str(plane.kubeconfig))

        yield call


def test_load_waits_until_the_model_is_up(ask, played):
    answer = ask("load", played.name)
    asked = played.wait_asked("load-requested")
    played.says("Starting", "on node a", loadHandled=asked)
    played.says("Up", loadHandled=asked)
    result = answer.result(timeout=30)
    assert result.exit_code == 0, result.output
    assert f"model default/{played.name} is up after" in result.output


def test_load_of_what_is_up_says_so_and_writes_nothing(ask, played):
    played.says("Up")
    before = played.read()["metadata"]["resourceVersion"]
    result = ask("load", played.name).result(timeout=30)
    assert (result.exit_code, result.output) == (0, f"model default/{played.name} is up already\n")
    assert played.read()["metadata"]["resourceVersion"] == before


def test_load_that_fails_says_why(ask, played):
    played.says("Failed", "of old", loadHandled="earlier")
    answer = ask("load", played.name)
    asked = played.wait_asked("load-requested")
    played.says("Failed", "its header is damaged", loadHandled=asked)
    result = answer.result(timeout=30)
    assert result.exit_code == 1
    assert "its header is damaged" in result.output
    assert f"berth explain {played.name} -n default" in result.output


def test_load_of_a_suspended_model_is_refused(ask, played, plane):
    suspend = json.dumps({"spec": {"suspend": True}})
    plane.kubectl("patch", "model", played.name, "--type=merge", f"-p={suspend}")
    result = ask("load", played.name).result(timeout=30)
    assert result.exit_code == 1
    assert "set spec.suspend to false" in result.output


def test_load_stops_waiting_in_time(ask, played):
    result = ask("load", played.name, "--timeout", "0.5").result(timeout=30)
    assert result.exit_code == 1
    assert "not so after 0.5 s" in result.output
    assert "berth doctor" in result.output


def test_unload_waits_until_no_runner_is_left(ask, played):
    runner = {"name": f"{played.name}-0", "state": "Up", "node": "a"}
    played.says("Up", runners=[runner])
    answer = ask("unload", played.name, "--json")
    asked = played.wait_asked("unload-requested")
    played.says("Stopping", unloadHandled=asked, runners=[runner])
    played.says("Down", unloadHandled=asked, runners=[])
    result = answer.result(timeout=30)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["changed"], said["state"], said["runners"]) == (True, "Down", [])


def test_unload_of_what_is_not_loaded_says_so(ask, played):
    played.says("Down")
    result = ask("unload", played.name).result(timeout=30)
    assert (result.exit_code, "is unloaded already" in result.output) == (0, True)


def test_a_model_that_is_not_there_is_named(ask):
    result = ask("load", "nobody").result(timeout=30)
    assert result.exit_code == 1
    assert "loading model default/nobody" in result.output
    assert "berth models -A" in result.output


def test_models_lists_every_namespace(ask, played, plane):
    played.says("Waiting", "it waits", needs={"text": "600 MiB for 4096 tokens"})
    listed = json.loads(ask("models", "-A", "--json").result(timeout=30).output)
    own = next(entry for entry in listed if entry["name"] == played.name)
    assert (own["namespace"], own["state"], own["message"]) == ("default", "Waiting", "it waits")
    table = ask("models").result(timeout=30).output
    row = next(line for line in table.splitlines() if played.name in line)
    assert "600 MiB for 4096 tokens" in row


def test_explain_reads_model_demand_and_runners(ask, played, plane):
    played.says("Waiting", "no room", lastRefusal={"reason": "RunnersBusy", "message": "all busy"})
    meta = {"name": played.name, "namespace": "default"}
    demand = {"apiVersion": "berth.dev/v1alpha1", "kind": "Demand", "metadata": meta}
    plane.apply(demand | {"spec": {}})
    waiting = {"status": {"waiting": [{"gateway": "g", "requests": 3}]}}
    plane.kubectl(
        "patch", "demand", played.name, "--subresource=status", "--type=merge",
        f"-p={json.dumps(waiting)}",
    )  # fmt: skip
    output = ask("explain", played.name).result(timeout=30).stdout
    assert output.splitlines()[0] == f"default/{played.name} is Waiting: no room"
    assert "3 requests wait for it" in output
    assert "all busy" in output
    assert "If it were asked for now" in output


def test_kill_asks_by_annotation(ask, plane):
    plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Runner",
            "metadata": {"name": "victim-0", "namespace": "default"},
            "spec": {"modelRef": {"name": "m", "uid": "u"}, "nodeName": "a"},
        }
    )
    result = ask("kill", "victim-0").result(timeout=30)
    assert result.output == "runner default/victim-0 of model m: asked to kill\n"
    kept = json.loads(plane.kubectl("get", "runner", "victim-0", "-o", "json"))
    assert "berth.dev/kill-requested" in kept["metadata"]["annotations"]


def test_kill_of_no_runner_names_those_there_are(ask, plane):
    result = ask("kill", "nobody").result(timeout=30)
    assert result.exit_code == 1
    assert "there is no such runner" in result.output


def test_the_namespace_is_the_contexts_own(berth, plane, tmp_path):
    config = tmp_path / "kubeconfig"
    config.write_text(plane.kubeconfig.read_text())
    plane.kubectl(
        f"--kubeconfig={config}", "config", "set-context", "--current", "--namespace=elsewhere"
    )
    result = berth("models", "--kubeconfig", str(config))
    assert "There is no Model in namespace elsewhere." in result.output


def test_the_doctor_finds_what_is_not_there(ask):
    result = ask("doctor", "--json").result(timeout=30)
    assert result.exit_code == 1
    found = {finding["what"]: finding for finding in json.loads(result.stdout)}
    assert found["API server"]["isWell"]
    assert found["kinds"]["seen"] == "all 7 are served"
    for program in ("controller", "agents", "gateway"):
        assert "install the chart" in found[program]["todo"]


def test_settings_of_the_cluster_are_those_of_its_config_map(ask, plane):
    plane.kubectl("create", "namespace", "berth-system")
    plane.kubectl(
        "create", "configmap", "berth-settings", "-n", "berth-system",
        "--from-literal=BERTH_IDLE_TIMEOUT=7m",
    )  # fmt: skip
    rows = json.loads(ask("settings", "--cluster", "--json").result(timeout=30).output)
    assert next(r["value"] for r in rows if r["name"] == "BERTH_IDLE_TIMEOUT") == "7m"


def allowed(plane, account, secret):
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": f"system:serviceaccount:berth-system:{account}",
            "resourceAttributes": {
                "verb": "get", "resource": "secrets", "namespace": "default", "name": secret,
            },
        },
    }  # fmt: skip
    answer = plane.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(review))
    return json.loads(answer)["status"]["allowed"]


def test_a_grant_lets_berth_read_one_secret_and_no_other(ask, plane):
    result = ask("grant-token", "hub").result(timeout=30)
    assert (result.exit_code, result.output) == (0, "Berth may read the Secret default/hub\n")
    assert ask("grant-token", "hub").result(timeout=30).exit_code == 0
    accounts = ("berth-controller", "berth-agent", "berth-gateway")
    assert [allowed(plane, account, "hub") for account in accounts] == [True, True, False]
    assert not allowed(plane, "berth-agent", "other")


def test_a_grant_can_be_printed_for_gitops(ask, plane):
    output = ask("grant-token", "printed", "--print").result(timeout=30).output
    assert [obj["kind"] for obj in yaml.safe_load_all(output)] == ["Role", "RoleBinding"]
    assert not allowed(plane, "berth-agent", "printed")


def test_a_server_that_is_away_is_told_as_such(berth, tmp_path, plane):
    config = tmp_path / "kubeconfig"
    config.write_text(plane.kubeconfig.read_text().replace(f":{plane.port}", ":1"))
    result = berth("models", "--kubeconfig", str(config))
    assert result.exit_code == 1
    assert "the API server did not answer" in result.output
