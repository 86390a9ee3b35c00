"""Do the chart's rights suffice? Controller and gateway run with them, and the audit log is read."""

import httpx
import pytest
import yaml

from api.bay import GIB
from api.bay import bay as open_bay
from chart.places import NAMESPACE
from cluster import stack as stacks
from fakes.gguf import sparse_llama

# The whole stack starts in the first test's set-up and ends in the last one's.
pytestmark = [pytest.mark.api, pytest.mark.timeout(300)]
PROGRAMS = ("controller", "gateway")
RARE = {("patch", f"{kind}/status") for kind in ("demands", "holds", "profiles", "residencies")} | {
    # After a create that met a taken name, and before a pod without a Runner is swept away.
    ("get", "runners")
}
"""Rights of the controller that need a gateway that is gone, or a kind that this test has none of."""


def kubeconfig(plane, program, *bound):
    """A kubeconfig with the token of the program's service account, bound to a pod where told."""
    token = plane.kubectl(
        "create", "token", f"berth-{program}", f"--namespace={NAMESPACE}", "--duration=1h", *bound
    ).strip()
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = plane.state_dir / f"{program}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def stack(render, tmp_path_factory):
    """A stack whose controller and gateway have the chart's rights and no more."""
    with stacks.running(tmp_path_factory.mktemp("stack"), audit=True) as stack:
        plane = stack.plane
        plane.apply(*(o for o in render() if o["kind"] not in ("Pod", "Deployment", "DaemonSet")))
        for program in PROGRAMS:
            plane.processes.stop(program)
            config = kubeconfig(plane, program)
            stack.start_program(program, env={"KUBECONFIG": str(config)})
        stack.wait("the gateway answers", lambda: answers(stack))
        yield stack


def answers(stack):
    try:
        return httpx.get(f"{stack.endpoint}/readyz", timeout=2).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture
def bay(stack):
    with open_bay(stack) as here:
        yield here


def asked_by(stack, program):
    """Every request of a program's service account: verb, what, HTTP status."""
    user = f"system:serviceaccount:{NAMESPACE}:berth-{program}"
    for entry in stack.plane.audited():
        if entry["user"]["username"] == user and entry["stage"] == "ResponseComplete":
            ref = entry.get("objectRef", {})
            what = "/".join(filter(None, (ref.get("resource"), ref.get("subresource"))))
            yield entry["verb"], what, entry["responseStatus"]["code"]


async def test_a_load_a_kill_and_an_unload_meet_no_forbidden_request(stack, bay):
    bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    bay.wait(model, "Up")
    runner = bay.runners()[0]["metadata"]["name"]
    stack.plane.kubectl("annotate", "runner", runner, "berth.dev/kill-requested=1", "-n", bay.name)
    await bay.until("the killed pod is gone", lambda: not bay.pods())
    assert (await bay.ask(model)).status_code == 200
    stack.plane.kubectl("annotate", "model", model, "berth.dev/unload-requested=1", "-n", bay.name)
    await bay.until("the model is unloaded", lambda: not bay.runners())
    stack.plane.kubectl("delete", "model", model, "-n", bay.name)
    for program in PROGRAMS:
        requests = list(asked_by(stack, program))
        assert [r for r in requests if r[2] in (401, 403)] == [], program
        assert {code for _, _, code in requests} & {200, 201}, program


def real_node(plane, name):
    """A Node that nobody plays: its agent is a process of its own."""
    size = {"cpu": "8", "memory": str(8 * GIB), "pods": "110"}
    plane.apply(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"bay": name}},
            "status": {
                "capacity": size,
                "allocatable": size,
                "conditions": [{"type": "Ready", "status": "True", "reason": "Played"}],
            },
        }
    )


def agent_pod(plane, node):
    """The pod that the agent's token is bound to."""
    plane.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "agent", "namespace": NAMESPACE},
            "spec": {
                "nodeName": node,
                "serviceAccountName": "berth-agent",
                "containers": [{"name": "agent", "image": "played"}],
            },
        }
    )
    return ("--bound-object-kind=Pod", "--bound-object-name=agent")


def test_an_agent_fetches_and_admits_with_its_rights(stack, bay):
    plane, node = stack.plane, bay.name
    real_node(plane, node)
    bay.nodes.append(node)
    config = kubeconfig(plane, "agent", *agent_pod(plane, node))
    stack.start_program("agent", env={"KUBECONFIG": str(config), "BERTH_NODE_NAME": node})
    stack.wait("its inventory", lambda: stack.get("nodeinventory", node).get("status"))
    model = bay.model("m", weights=1 << 20, minReplicas=1)
    stack.wait("the load is admitted", lambda: is_admitted(bay.runners()), deadline_s=60)
    stack.wait("the pod is made", lambda: bay.pods_of(model))
    requests = list(asked_by(stack, "agent"))
    assert [r for r in requests if r[2] in (401, 403, 422)] == []
    assert ("patch", "runners/status", 200) in requests
    plane.processes.stop("agent")


def is_admitted(runners):
    words = [
        r.get("status", {}).get("agent", {}).get("admission", {}).get("state") for r in runners
    ]
    return "Admitted" in words


def test_a_claim_is_looked_at_with_the_controllers_rights(stack, bay):
    bay.node()
    sparse_llama(bay.claim("weights") / "m.gguf", weights=GIB)
    bay.wait_needs(bay.claim_model("m", "m.gguf"))
    # Namespaces of former tests are ending, so that not every refusal there is one of a right.
    requests = set(asked_by(stack, "controller"))
    assert ("get", "persistentvolumeclaims", 200) in requests
    assert ("get", "persistentvolumes", 200) in requests


def test_no_right_is_given_that_is_not_used(stack, render):
    """Verbs of the controller's role that neither a load nor a kill nor an unload nor a claim asked for, but for the rare ones."""
    asked = {(verb, what) for verb, what, _ in asked_by(stack, "controller")}
    role = next(
        obj
        for obj in render()
        if (obj["kind"], obj["metadata"]["name"]) == ("ClusterRole", "berth-controller")
    )
    unused = {
        (verb, what)
        for rule in role["rules"]
        for what in rule["resources"]
        for verb in rule["verbs"]
        # A watch is in the log when it has ended; who lists also watches.
        if (verb, what) not in asked and verb != "watch"
    }
    assert not unused - RARE, "; ".join(map(" ".join, sorted(unused - RARE)))
