"""Which nodes, models and pods does the comparison of placements write? Objects as dicts, all alike."""

import json
import tempfile
from pathlib import Path
from typing import Any

from berth.api.inventory import Device, HostMemory, NodeInventoryStatus, StoredFile
from berth.api.meta import API_VERSION
from berth.api.model import FactsStatus, FileFact
from berth.api.model import Model as ModelObject
from berth.api.runner import Claim, DeviceClaim, ModelRef, RunnerSpec
from berth.controller.resolve import source_hash
from berth.headers.local import read_path
from fakes.fleet import gpu_uuid
from fakes.gguf import sparse_llama

Object = dict[str, Any]
GIB = 1 << 30
GPUS = 4
GPU_MEMORY = 24 * GIB
HOST_MEMORY = 256 * GIB
WEIGHTS = 8 * GIB
SHA256 = "b" * 64
"""Of the one file of all models; every node says that it has it, so that nothing is fetched."""
RESOURCE = "bench.berth.dev/gpu"
"""What the pods count GPUs by, as a device plugin would offer them."""
LABELS = {"bench": "fleet"}
URI = "http://127.0.0.1:9/model.gguf"


def node(name: str) -> Object:
    size = {"cpu": "64", "memory": str(HOST_MEMORY), "pods": "110", RESOURCE: str(GPUS)}
    labels = {"kubernetes.io/hostname": name, **LABELS}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "status": {"capacity": size, "allocatable": size},
    }


def inventory(name: str) -> Object:
    return {"apiVersion": API_VERSION, "kind": "NodeInventory", "metadata": {"name": name}}


def inventory_status(name: str) -> Object:
    """What the agent of an empty node would say."""
    devices = [
        Device(uuid=gpu_uuid(name, n), index=n, name="Fake GPU", memory=GPU_MEMORY)
        for n in range(GPUS)
    ]
    return NodeInventoryStatus(
        host=HostMemory(total=HOST_MEMORY, available=HOST_MEMORY - 4 * GIB),
        cpus=64,
        devices=devices,
        driver="fake",
        disk_total=4096 * GIB,
        disk_free=3072 * GIB,
        files=[StoredFile(sha256=SHA256, size=WEIGHTS)],
        file_count=1,
    ).wire()


def model(name: str, namespace: str) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "Model",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"source": {"url": {"uri": URI, "sha256": SHA256}}, "nodeSelector": LABELS},
    }


def facts() -> Object:
    """The status of a Model whose header a former leader has read: no source is asked again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        size = sparse_llama(path, weights=WEIGHTS)
        read, _ = read_path(str(path))
    status = FactsStatus(
        architecture=read.architecture,
        name=read.name,
        quantization=read.quantisation,
        parameters=read.parameters,
        layers=read.layers or 0,
        context_length=read.context_length or 0,
        bytes=size,
        digest=SHA256,
        files=[FileFact(name="model.gguf", url=URI, size=size, sha256=SHA256)],
        source_hash=source_hash(ModelObject.model_validate(model("any", "any"))),
        record=json.dumps(read.to_json(), separators=(",", ":")),
    )
    return {"facts": status.wire()}


def runner(name: str, namespace: str) -> Object:
    """A Runner as the controller writes it for one of these models."""
    spec = RunnerSpec(
        model_ref=ModelRef(name=name, uid="00000000-0000-0000-0000-000000000000", generation=1),
        epoch=1,
        pass_id="1-1-1",
        stage="Reserved",
        node_name="gpu-0000",
        claim=Claim(
            host=GIB,
            devices=[DeviceClaim(device=gpu_uuid("gpu-0000", 0), memory=WEIGHTS + GIB)],
            disk=WEIGHTS,
        ),
        files=[FileFact(name="model.gguf", url=URI, size=WEIGHTS, sha256=SHA256)],
        image="fake/llamacpp:cuda",
        command=["llama-server", *(f"--setting-{n}" for n in range(24))],
        port=8080,
        settings_hash="0" * 16,
        node_selector=LABELS,
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "Runner",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec.wire(),
    }


def pod(name: str, namespace: str) -> Object:
    """One that asks the scheduler for what a model asks Berth for: a node by label, host memory, a GPU."""
    resources = {"requests": {"memory": str(GIB)}, "limits": {RESOURCE: "1"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"bench": "pods"}},
        "spec": {
            "nodeSelector": LABELS,
            "automountServiceAccountToken": False,
            "containers": [{"name": "engine", "image": "fake", "resources": resources}],
        },
    }
