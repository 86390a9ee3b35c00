"""What may each program's token do on a real API server, and what not?"""

import json
import ssl
import subprocess
from dataclasses import dataclass

import httpx
import pytest

from chart.places import NAMESPACE

pytestmark = pytest.mark.api

CAN = [
    ("controller", "create", "pods", "team"),
    ("controller", "patch", "models.berth.dev/status", "team"),
    ("controller", "create", "runners.berth.dev", "team"),
    ("controller", "get", "persistentvolumeclaims", "team"),
    ("controller", "get", "persistentvolumes", ""),
    ("controller", "patch", "leases.coordination.k8s.io/berth-controller", NAMESPACE),
    ("controller", "watch", "leases.coordination.k8s.io/berth-controller", ""),
    ("agent", "patch", "runners.berth.dev/status", "team"),
    ("agent", "patch", "nodeinventories.berth.dev/status", ""),
    ("gateway", "patch", "demands.berth.dev/status", "team"),
    ("gateway", "watch", "models.berth.dev", ""),
]
CANNOT = [
    ("controller", "get", "models.berth.dev", "team"),
    ("controller", "list", "secrets", ""),
    ("controller", "list", "persistentvolumeclaims", "team"),
    ("controller", "list", "persistentvolumes", ""),
    ("controller", "get", "secrets", NAMESPACE),
    ("controller", "patch", "models.berth.dev", "team"),
    ("controller", "patch", "nodes", ""),
    ("controller", "get", "leases.coordination.k8s.io/kube-scheduler", "kube-system"),
    ("controller", "watch", "leases.coordination.k8s.io", ""),
    ("agent", "create", "pods", "team"),
    ("agent", "delete", "pods", "team"),
    ("agent", "patch", "runners.berth.dev", "team"),
    ("agent", "patch", "models.berth.dev/status", "team"),
    ("agent", "get", "secrets", NAMESPACE),
    ("gateway", "patch", "runners.berth.dev/status", "team"),
    ("gateway", "get", "pods", "team"),
    ("gateway", "list", "secrets", ""),
]


def access(plane, program, verb, what, namespace):
    """What the API server's own review of the right says."""
    kind, _, tail = what.partition("/")
    resource, _, group = kind.partition(".")
    attributes = {"verb": verb, "resource": resource, "group": group, "namespace": namespace}
    attributes["subresource" if tail in ("status", "scale") else "name"] = tail
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": f"system:serviceaccount:{NAMESPACE}:berth-{program}",
            "resourceAttributes": attributes,
        },
    }
    answer = plane.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(review))
    return json.loads(answer)["status"]["allowed"]


@pytest.mark.parametrize("right", CAN, ids=" ".join)
def test_a_program_may(plane, right):
    assert access(plane, *right)


@pytest.mark.parametrize("right", CANNOT, ids=" ".join)
def test_a_program_may_not(plane, right):
    assert not access(plane, *right)


@dataclass(frozen=True)
class Caller:
    """Who asks the API server by a token, as a field manager of its own."""

    client: httpx.Client
    program: str

    def apply(self, path, body):
        return self.client.patch(
            f"/apis/berth.dev/v1alpha1/{path}",
            params={"fieldManager": f"berth-{self.program}", "force": "true"},
            content=json.dumps({"apiVersion": "berth.dev/v1alpha1", **body}),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )


@pytest.fixture(scope="module")
def caller(plane):
    """A caller with the token of a program's pod on node a."""
    plane.kubectl("create", "namespace", "team")
    plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
    context = ssl.create_default_context(cafile=str(plane.authority.pair.cert))
    clients = []

    def of(program):
        name = f"{program}-pod"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "nodeName": "a",
                "serviceAccountName": f"berth-{program}",
                "containers": [{"name": "x", "image": "x"}],
            },
        }
        plane.apply(pod)
        token = plane.kubectl(
            "create", "token", f"berth-{program}", f"--namespace={NAMESPACE}",
            "--bound-object-kind=Pod", f"--bound-object-name={name}",
        ).strip()  # fmt: skip
        clients.append(
            httpx.Client(
                base_url=plane.server, verify=context, headers={"Authorization": f"Bearer {token}"}
            )
        )
        return Caller(clients[-1], program)

    yield of
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def agent(caller):
    return caller("agent")


@pytest.fixture(scope="module")
def runners(plane, caller):
    """Runners r-a on node a and r-b on node b, made by the controller."""
    controller = caller("controller")
    for node in ("a", "b"):
        answer = controller.apply(
            f"namespaces/team/runners/r-{node}",
            {
                "kind": "Runner",
                "metadata": {"name": f"r-{node}"},
                "spec": {"modelRef": {"name": "m", "uid": "u"}, "nodeName": node},
            },
        )
        assert answer.status_code == 201, answer.text
        controller.apply(
            f"namespaces/team/runners/r-{node}/status",
            {"kind": "Runner", "metadata": {"name": f"r-{node}"}, "status": {"state": "Reserved"}},
        )


def inventory(name):
    return {"kind": "NodeInventory", "metadata": {"name": name}, "spec": {}}


def test_an_agent_writes_the_inventory_of_its_own_node(agent):
    assert agent.apply("nodeinventories/a", inventory("a")).status_code == 201
    body = {"kind": "NodeInventory", "metadata": {"name": "a"}, "status": {"cpus": 4}}
    answer = agent.apply("nodeinventories/a/status", body)
    assert (answer.status_code, answer.json()["status"]["cpus"]) == (200, 4)


def test_an_agent_may_not_write_the_inventory_of_another_node(agent):
    answer = agent.apply("nodeinventories/b", inventory("b"))
    assert answer.status_code == 422
    assert "the agent of node a may not write the inventory of b" in answer.json()["message"]


def status(**fields):
    return {"kind": "Runner", "status": fields}


QUIET = {"agent": {"health": {"state": "Ready", "busy": 0}}}


def test_an_agent_writes_its_own_subtree(agent, runners):
    body = status(**QUIET) | {"metadata": {"name": "r-a"}}
    assert agent.apply("namespaces/team/runners/r-a/status", body).status_code == 200


def test_an_agent_may_not_write_a_runner_of_another_node(agent, runners):
    body = status(**QUIET) | {"metadata": {"name": "r-b"}}
    answer = agent.apply("namespaces/team/runners/r-b/status", body)
    assert answer.status_code == 422
    assert "the agent of node a may not write a runner of node b" in answer.json()["message"]


@pytest.mark.parametrize(
    "field",
    [
        pytest.param({"state": "Up"}, id="state"),
        pytest.param({"address": "1.2.3.4:80"}, id="address"),
        pytest.param({"lastExit": {"reason": "Crashed"}}, id="last exit"),
    ],
)
def test_an_agent_may_not_write_what_the_controller_says(agent, runners, field):
    body = status(**QUIET, **field) | {"metadata": {"name": "r-a"}}
    answer = agent.apply("namespaces/team/runners/r-a/status", body)
    assert answer.status_code == 422
    assert "nothing of a Runner's status but status.agent" in answer.json()["message"]


def test_a_token_without_a_node_speaks_for_none(plane, agent):
    token = plane.kubectl("create", "token", "berth-agent", f"--namespace={NAMESPACE}").strip()
    headers = {"Authorization": f"Bearer {token}"}
    context = ssl.create_default_context(cafile=str(plane.authority.pair.cert))
    with httpx.Client(base_url=plane.server, verify=context, headers=headers) as client:
        answer = Caller(client, "agent").apply("nodeinventories/a", inventory("a"))
    assert answer.status_code == 422
    assert "names no node" in answer.json()["message"]


def test_a_user_kills_a_runner_but_never_says_what_it_runs(plane, runners):
    # Here no controller adds these roles to Kubernetes' own `edit`, which eve has elsewhere.
    for role in ("berth-view", "berth-edit"):
        plane.kubectl(
            "create", "rolebinding", role, f"--clusterrole={role}", "--user=eve", "-n", "team"
        )
    plane.kubectl(
        "annotate", "runner/r-a", "berth.dev/kill-requested=now", "-n", "team", "--as=eve"
    )
    mount = json.dumps({"spec": {"mount": {"hostPath": "/etc"}}})
    told = refused(
        plane, "patch", "runner", "r-a", "-n", "team", "--type=merge", f"-p={mount}", "--as=eve"
    )
    assert "the spec of a Runner is written by Berth's controller" in told


def test_nodes_are_taken_by_whom_the_role_was_given_to_and_by_nobody_else(plane):
    plane.kubectl("create", "clusterrolebinding", "ada", "--clusterrole=berth-holder", "--user=ada")
    hold = {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Hold",
        "metadata": {"name": "adas"},
        "spec": {"nodes": ["a"]},
    }
    told = refused(plane, "create", "-f", "-", "--as=eve", stdin=json.dumps(hold))
    assert 'cannot create resource "holds"' in told
    plane.kubectl("create", "-f", "-", "--as=ada", stdin=json.dumps(hold))
    for kind in ("nodes", "runners", "demands", "models"):
        plane.kubectl("get", kind, "--all-namespaces", "--as=ada")
    plane.kubectl("delete", "hold", "adas", "--as=ada")


def test_nobody_else_makes_a_runner(plane, runners):
    body = {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Runner",
        "metadata": {"name": "mine", "namespace": "team"},
        "spec": {"modelRef": {"name": "m", "uid": "u"}, "nodeName": "a"},
    }
    told = refused(plane, "create", "-f", "-", stdin=json.dumps(body))
    assert "kubectl berth load MODEL" in told


def refused(plane, *args, stdin=None):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        plane.kubectl(*args, stdin=stdin)
    return caught.value.stderr
