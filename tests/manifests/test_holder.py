"""May the pod that holds a copy do just that?"""

import kubernetes_validate

from berth.controller.copies import with_copies
from berth.controller.views import Holds, pod_view
from berth.manifests.holder import HolderSettings, holder_claim, holder_name, holder_pod
from berth.planner.state import Copy, Node
from berth.units import Bytes, GiB, MiB

SHA = "ab" * 32
SETTINGS = HolderSettings("berth-system", "berth/operator:1", "/var/lib/berth")


def pod(**status):
    return holder_pod("node-a", SHA, GiB, SETTINGS) | {"status": status}


def test_it_is_valid_and_sees_one_file_and_has_one_capability():
    made = holder_pod("node-a", SHA, GiB, SETTINGS)
    kubernetes_validate.validate(made, "1.37", strict=True)
    spec = made["spec"]
    (container,) = spec["containers"]
    assert spec["volumes"][0]["hostPath"] == {
        "path": f"/var/lib/berth/blobs/sha256/{SHA}",
        "type": "File",
    }
    assert container["volumeMounts"][0]["readOnly"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    memory = str(GiB + 64 * MiB)
    assert container["resources"]["requests"]["memory"] == memory
    assert container["resources"]["limits"] == {"memory": memory}


def test_a_file_so_large_that_its_page_tables_count_has_room_for_them():
    size = 64 * GiB
    assert holder_claim(size) - size >= 32 * MiB + size // 512


def test_each_node_has_a_name_of_its_own_that_is_short_enough():
    names = {holder_name(node, SHA) for node in ("a", "n" * 253, "n" * 252 + "m")}
    assert len(names) == 3
    assert max(map(len, names)) <= 63


def test_the_controller_finds_it_again_as_an_entry_of_the_ledger():
    view = pod_view(pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}]))
    assert (view.node, view.holds, view.is_runner) == ("node-a", Holds(SHA, Bytes(GiB)), False)
    node = Node("node-a", Bytes(0), Bytes(0))
    (found,) = with_copies([node], [view])
    assert found.copies == (Copy(SHA, Bytes(GiB), holder_claim(GiB), True),)


def test_one_that_has_ended_holds_nothing():
    node = Node("node-a", Bytes(0), Bytes(0))
    assert with_copies([node], [pod_view(pod(phase="Failed"))]) == (node,)
