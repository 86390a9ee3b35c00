"""Is a Runner's pod exactly what the design says, and does its container understand it?"""

import json

import kubernetes_validate
import pytest

from berth.api.runner import Runner
from berth.manifests.pod import PodSettings, resources, runner_config, runner_pod, spec_hash
from berth.runner.config import DeviceNeed, FileCheck, RunnerConfig, parse_config

UUID = "GPU-11111111-2222-3333-4444-555555555555"


def runner(**spec):
    """A Runner of the model ``gemma`` on node ``a``, on its CPU unless told otherwise."""
    return Runner.model_validate(
        {
            "metadata": {"name": "gemma-12345678-0-0", "namespace": "team", "uid": "u-1"},
            "spec": {
                "modelRef": {"name": "gemma", "uid": "m-1"},
                "nodeName": "a",
                "claim": {"host": 600 << 20, "hostFilePages": 200 << 20},
                "files": [{"name": "gemma.gguf", "size": 253, "sha256": "ab"}],
                "image": "localhost/berth/llamacpp:1",
                "command": ["llama-server", "-m", "/models/gemma.gguf"],
                "port": 8080,
                **spec,
            },
        }
    )


CONFIG = {
    "engine": ["llama-server", "-m", "/models/gemma.gguf"],
    "port": 8080,
    "controlPort": 8090,
    "env": {},
    "busyProbe": "llamacpp",
    "hostNeed": 600 << 20,
    "devices": [],
    "files": [{"path": "/models/gemma.gguf", "size": 253}],
    "dropCache": [],
    "quiet": 2.0,
    "drainTimeout": 300,
    "sessionTime": 60,
    "stopTimeout": 20,
    "terminationGrace": 390,
}


def test_a_runner_on_the_cpu_has_this_whole_pod():
    pod = runner_pod(runner())
    config = pod["spec"]["containers"][0]["env"][0].pop("value")
    assert json.loads(config) == CONFIG
    digest = pod["metadata"]["annotations"].pop("berth.dev/spec-hash")
    assert len(digest) == 16
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "gemma-12345678-0-0",
            "namespace": "team",
            "labels": {
                "app.kubernetes.io/managed-by": "berth",
                "berth.dev/model": "gemma",
                "berth.dev/runner": "gemma-12345678-0-0",
                "berth.dev/runner-uid": "u-1",
            },
            "annotations": {
                "berth.dev/claim": '{"devices":[],"disk":0,"host":629145600,"hostCopied":0,"hostFilePages":209715200}'
            },
            "ownerReferences": [
                {
                    "apiVersion": "berth.dev/v1alpha1",
                    "kind": "Runner",
                    "name": "gemma-12345678-0-0",
                    "uid": "u-1",
                    "controller": True,
                }
            ],
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 390,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "priorityClassName": "berth-runner",
            "preemptionPolicy": "Never",
            "affinity": {"nodeAffinity": on_node_a({})},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "engine",
                    "image": "localhost/berth/llamacpp:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-m", "berth.runner"],
                    "env": [
                        {"name": "BERTH_RUNNER"},
                        {"name": "BERTH_LOG_LEVEL", "value": "info"},
                        {"name": "HOME", "value": "/tmp"},
                        {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"},
                        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
                        {"name": "HF_HUB_OFFLINE", "value": "1"},
                        {"name": "TRANSFORMERS_OFFLINE", "value": "1"},
                    ],
                    "ports": [
                        {"name": "http", "containerPort": 8080},
                        {"name": "control", "containerPort": 8090},
                    ],
                    "readinessProbe": {
                        "httpGet": {"path": "/health", "port": "control"},
                        "periodSeconds": 1,
                        "timeoutSeconds": 2,
                        "failureThreshold": 3,
                    },
                    "resources": {
                        "requests": {"memory": str(600 << 20)},
                        "limits": {"memory": str(1112 << 20)},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": True,
                    },
                    "volumeMounts": [
                        {"name": "models", "mountPath": "/models", "readOnly": True},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                }
            ],
            "volumes": [
                {
                    "name": "models",
                    "csi": {
                        "driver": "store.berth.dev",
                        "readOnly": True,
                        "volumeAttributes": {"volume": "weights"},
                    },
                },
                {"name": "tmp", "emptyDir": {"sizeLimit": str(4 << 30)}},
            ],
        },
    }


def on_node_a(term):
    this = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    terms = [term | {"matchFields": [this]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def test_what_the_pod_is_told_is_what_the_runner_program_reads():
    told = runner(
        env=[{"name": "OMP_NUM_THREADS", "value": "4"}],
        claim={"host": 100, "devices": [{"device": UUID, "memory": 7 << 30}]},
        drainTimeoutSeconds=30,
    )
    assert parse_config(json.dumps(runner_config(told))) == RunnerConfig(
        engine=("llama-server", "-m", "/models/gemma.gguf"),
        port=8080,
        env={"OMP_NUM_THREADS": "4"},
        host_need=100,
        devices=(DeviceNeed(UUID, 7 << 30),),
        files=(FileCheck("/models/gemma.gguf", 253),),
        drop_cache=("/models/gemma.gguf",),
        drain_timeout_s=30.0,
        termination_grace_s=120.0,
    )


def environment(pod):
    return {v["name"]: v["value"] for v in pod["spec"]["containers"][0]["env"]}


def test_a_runner_with_gpus_sees_those_and_gets_the_runtime_class():
    claim = {"devices": [{"device": UUID, "memory": 1}, {"device": "GPU-2", "memory": 1}]}
    pod = runner_pod(runner(claim=claim), PodSettings(runtime_class="nvidia"))
    assert environment(pod)["NVIDIA_VISIBLE_DEVICES"] == f"{UUID},GPU-2"
    assert pod["spec"]["runtimeClassName"] == "nvidia"


def test_a_runner_without_a_gpu_gets_no_runtime_class():
    assert (
        "runtimeClassName" not in runner_pod(runner(), PodSettings(runtime_class="nvidia"))["spec"]
    )


def test_a_users_variable_reaches_the_engine_but_never_the_container_runtime():
    stolen = runner_pod(runner(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))
    assert environment(stolen)["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(
    ("mount", "volume"),
    [
        pytest.param(
            {"hostPath": "/data/models"},
            {"hostPath": {"path": "/data/models", "type": "Directory"}},
            id="a directory of the node",
        ),
        pytest.param(
            {"persistentVolumeClaim": "weights"},
            {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
            id="a claim",
        ),
    ],
)
def test_mounted_files_are_read_where_they_are(mount, volume):
    assert runner_pod(runner(mount=mount))["spec"]["volumes"][0] == {"name": "models", **volume}


def test_without_the_volume_driver_the_store_is_a_host_path():
    volumes = runner_pod(runner(), PodSettings(store_volume="hostPath"))["spec"]["volumes"]
    path = {"path": "/var/lib/berth/runners/u-1", "type": "Directory"}
    assert volumes[0] == {"name": "models", "hostPath": path}


GIB = 1 << 30
TWO_FILES = [{"name": "m.gguf", "size": 10 * GIB}, {"name": "lm/table.bin", "size": GIB}]


@pytest.mark.parametrize(
    ("claim", "kept", "want"),
    [
        pytest.param({}, [], ["m.gguf", "lm/table.bin"], id="all that was copied is dropped"),
        pytest.param({"hostFilePages": 10 * GIB}, [], [], id="what is mapped is not"),
        pytest.param({"hostCopied": 10 * GIB}, [], [], id="nor what is mapped from a copy"),
        pytest.param(
            {"hostFilePages": GIB}, ["lm/table.bin"], ["m.gguf"], id="what is kept warm stays"
        ),
        pytest.param(
            {"hostFilePages": 11 * GIB}, ["lm/table.bin"], [], id="kept warm beside what is mapped"
        ),
    ],
)
def test_whose_page_cache_is_dropped_after_the_load(claim, kept, want):
    claim = {"host": 12 * GIB, "hostFilePages": 0, **claim}
    config = runner_config(runner(claim=claim, files=TWO_FILES, keepWarm=kept))
    assert config["dropCache"] == [f"/models/{name}" for name in want]


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(
            None,
            {"requests": {"memory": str(20 * GIB)}, "limits": {"memory": str(21 * GIB)}},
            id="the claim, and 5 % above it",
        ),
        pytest.param(
            {"requests": {"memory": "24Gi"}}, {"requests": {"memory": "24Gi"}}, id="request only"
        ),
        pytest.param(
            {"limits": {"memory": "64Gi"}},
            {"requests": {"memory": str(20 * GIB)}, "limits": {"memory": "64Gi"}},
            id="limit only",
        ),
        pytest.param(
            {"limits": {"memory": "8Gi"}},
            {"requests": {"memory": str(8 * GIB)}, "limits": {"memory": "8Gi"}},
            id="a limit below the claim still makes a pod that the API server takes",
        ),
        pytest.param(
            {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
            {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
            id="both",
        ),
        pytest.param(
            {"requests": {"cpu": "2"}},
            {
                "requests": {"memory": str(20 * GIB), "cpu": "2"},
                "limits": {"memory": str(21 * GIB)},
            },
            id="CPUs only: memory stays the claim's",
        ),
    ],
)
def test_memory_is_the_claims_unless_the_profile_says(asked, want):
    assert resources(runner(claim={"host": 20 * GIB}, resources=asked)) == want


def test_a_pod_template_adds_but_never_replaces_what_berth_reads():
    template = {
        "labels": {"team": "blue", "berth.dev/model": "other"},
        "annotations": {"note": "x", "berth.dev/claim": "{}"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": ["pull"],
        "runtimeClassName": "kata",
        "priorityClassName": "low",
        "affinity": {"podAntiAffinity": {}},
    }
    plain, pod = runner_pod(runner()), runner_pod(runner(podTemplate=template))
    assert pod["metadata"]["labels"] == plain["metadata"]["labels"] | {"team": "blue"}
    assert pod["metadata"]["annotations"]["note"] == "x"
    assert (
        pod["metadata"]["annotations"]["berth.dev/claim"]
        == plain["metadata"]["annotations"]["berth.dev/claim"]
    )
    assert pod["spec"] == plain["spec"] | {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "pull"}],
        "runtimeClassName": "kata",
        "priorityClassName": "low",
        "affinity": {"podAntiAffinity": {}, "nodeAffinity": on_node_a({})},
    }


def test_affinity_of_a_profile_never_widens_the_node():
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}
    rack = {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}
    asked = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone, rack]}
        }
    }
    pod = runner_pod(runner(podTemplate={"affinity": asked}))
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    assert terms == [on_node_a(term)[required]["nodeSelectorTerms"][0] for term in (zone, rack)]


def test_the_models_tolerations_and_selector_are_the_pods():
    asked = runner(
        tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        nodeSelector={"zone": "x"},
    )
    spec = runner_pod(asked)["spec"]
    assert (spec["tolerations"], spec["nodeSelector"]) == (
        [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        {"zone": "x"},
    )


def test_the_control_port_gets_out_of_the_engines_way():
    pod = runner_pod(runner(port=8090))
    assert [p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]] == [8090, 8091]
    assert json.loads(environment(pod)["BERTH_RUNNER"])["controlPort"] == 8091


def test_the_hash_is_of_what_is_said_not_of_the_order_it_is_said_in():
    assert spec_hash({"a": 1, "b": {"c": 2, "d": 3}}) == spec_hash({"b": {"d": 3, "c": 2}, "a": 1})
    assert spec_hash({"a": 1}) != spec_hash({"a": 2})


def test_no_pod_has_a_liveness_probe_or_a_node_name():
    pod = runner_pod(runner())
    assert "nodeName" not in pod["spec"]
    assert {"livenessProbe", "startupProbe"}.isdisjoint(pod["spec"]["containers"][0])


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="on the CPU"),
        pytest.param({"claim": {"devices": [{"device": UUID, "memory": 1}]}}, id="on a GPU"),
        pytest.param({"mount": {"persistentVolumeClaim": "w"}}, id="files in a claim"),
    ],
)
def test_kubernetes_own_schema_takes_it(spec):
    kubernetes_validate.validate(runner_pod(runner(**spec)), "1.37", strict=True)
