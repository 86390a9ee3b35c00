"""Does the chart render valid objects with no right, and no default, that it should not have?"""

import json

import kubernetes_validate
import pytest
import yaml

from berth.settings import REGISTRY, Settings
from chart.places import CHART, ROOT

# Helm is built like the API server's programs, before these tests and not in one of them.
pytestmark = pytest.mark.api
VARIANTS = [
    pytest.param({}, id="defaults"),
    pytest.param(
        {
            "gateway.replicas": 3,
            "gateway.service": {"type": "NodePort", "port": 80, "nodePort": 30080},
            "agent.hostPaths": ["/data"],
            "agent.runtimeClassName": "nvidia",
            "caConfigMap": "authorities",
            "extraEnv": {"HTTPS_PROXY": "http://proxy:3128"},
            "settings": {"PORT": 9090, "IDLE_TIMEOUT": "10m", "STORE_ROOT": "/mnt/berth"},
            "image.pullSecrets": ["pull"],
            "controller.nodeSelector": {"zone": "x"},
            "gateway.keysSecret": "keys",
            "gateway.usageClaim": "usage",
        },
        id="everything set",
    ),
    pytest.param({"agent.csi.enabled": False}, id="without the volume driver"),
    pytest.param({"runners.priorityClass.create": False}, id="a priority class of one's own"),
]


def pod_specs(objects):
    for obj in objects:
        if obj["kind"] in ("Deployment", "DaemonSet"):
            yield obj["metadata"]["name"], obj["spec"]["template"]["spec"]
        elif obj["kind"] == "Pod":
            yield obj["metadata"]["name"], obj["spec"]


def named(objects, kind, name):
    return next(o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize("values", VARIANTS)
def test_every_object_is_valid(render, values):
    for obj in render(**values):
        kubernetes_validate.validate(obj, "1.37", strict=True)


@pytest.mark.parametrize("values", VARIANTS)
def test_every_container_says_what_it_needs_and_may_do_little(render, values):
    for name, spec in pod_specs(render(**values)):
        for container in spec["containers"]:
            assert container["resources"]["requests"]["memory"], name
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, name
            if (name, container["name"]) == ("berth-agent", "csi"):
                continue  # see the test of the one privileged container
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"]["drop"] == ["ALL"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        if name != "berth-agent":
            assert spec["securityContext"]["runAsNonRoot"] is True, name
            assert not {"hostPID", "hostNetwork", "hostIPC"} & set(spec), name
            assert (
                not [v for v in spec["volumes"] if "hostPath" in v] if "volumes" in spec else True
            )


def test_only_the_agent_is_root_and_of_the_hosts_file_systems_it_writes_the_store_alone(render):
    values = {"agent.hostPaths": ["/data"], "agent.csi.enabled": False}
    spec = dict(pod_specs(render(**values)))["berth-agent"]
    host = {v["name"] for v in spec["volumes"] if "hostPath" in v}
    mounts = {m["name"]: m.get("readOnly", False) for m in spec["containers"][0]["volumeMounts"]}
    assert {name: mounts[name] for name in host} == {
        "store": False,
        "cgroup": True,
        "host-0": True,
    }
    resources = spec["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]


def test_the_volume_driver_is_the_one_privileged_container_and_sees_the_store_read_only(render):
    objects = render(**{"agent.csi": {"enabled": True, "kubeletDir": "/k", "resources": {}}})
    spec = dict(pod_specs(objects))["berth-agent"]
    privileged = [
        (name, container["name"])
        for name, found in pod_specs(objects)
        for container in found["containers"]
        if container["securityContext"].get("privileged")
    ]
    assert privileged == [("berth-agent", "csi")]
    csi = spec["containers"][1]
    assert csi["command"] == ["berth", "csi"]
    assert {m["mountPath"]: m.get("readOnly", False) for m in csi["volumeMounts"]} == {
        "/tmp": False,
        "/var/lib/berth": True,
        "/var/lib/berth/sessions": False,
        "/k/plugins/store.berth.dev": False,
        "/k/plugins_registry": False,
        "/k/pods": False,
    }
    shared = [m["mountPath"] for m in csi["volumeMounts"] if "mountPropagation" in m]
    assert shared == ["/k/pods"]


def test_without_the_volume_driver_runner_pods_mount_the_store_by_path(render):
    def setting(objects):
        return named(objects, "ConfigMap", "berth-settings")["data"]["BERTH_STORE_VOLUME"]

    with_it, without = render(), render(**{"agent.csi.enabled": False})
    assert (setting(with_it), setting(without)) == ("csi", "hostPath")
    assert named(with_it, "CSIDriver", "store.berth.dev")["spec"] == {
        "attachRequired": False,
        "podInfoOnMount": True,
        "fsGroupPolicy": "None",
        "volumeLifecycleModes": ["Ephemeral"],
    }
    assert not [o for o in without if o["kind"] == "CSIDriver"]
    assert len(dict(pod_specs(without))["berth-agent"]["containers"]) == 1


def rules(objects):
    for obj in objects:
        if obj["kind"] in ("Role", "ClusterRole"):
            for rule in obj["rules"]:
                yield obj["metadata"]["name"], rule


def test_no_right_has_a_wildcard_and_none_is_on_secrets(render):
    for name, rule in rules(render()):
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], name
        assert "secrets" not in rule["resources"], name
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"]), name


def test_no_right_touches_finalizers(render):
    assert not [r for _, rule in rules(render()) for r in rule["resources"] if "finalizers" in r]


def test_a_budget_comes_with_a_second_gateway(render):
    kinds = {n: [o["kind"] for o in render(**{"gateway.replicas": n})] for n in (1, 2)}
    assert "PodDisruptionBudget" not in kinds[1]
    assert "PodDisruptionBudget" in kinds[2]


def test_settings_become_variables_of_every_program(render):
    objects = render(settings={"IDLE_TIMEOUT": "10m", "QUEUE_LIMIT": 7})
    data = named(objects, "ConfigMap", "berth-settings")["data"]
    assert (data["BERTH_IDLE_TIMEOUT"], data["BERTH_QUEUE_LIMIT"]) == ("10m", "7")
    for name, spec in pod_specs(objects):
        if name != "berth-test-endpoint":
            assert spec["containers"][0]["envFrom"] == [
                {"configMapRef": {"name": "berth-settings"}}
            ]


def test_pods_that_look_at_a_claim_run_the_controllers_own_image(render):
    def data(**values):
        return named(render(**values), "ConfigMap", "berth-settings")["data"]

    own = {"controller.image": {"repository": "mirror/berth", "tag": "7"}}
    assert data(**own)["BERTH_IMAGE_OPERATOR"] == "mirror/berth:7"
    other = {"settings": {"IMAGE_OPERATOR": "elsewhere/berth:8"}}
    assert data(**other)["BERTH_IMAGE_OPERATOR"] == "elsewhere/berth:8"


def test_a_changed_setting_restarts_the_programs(render):
    def checksum(**values):
        meta = named(render(**values), "Deployment", "berth-gateway")["spec"]["template"][
            "metadata"
        ]
        return meta["annotations"]["berth.dev/settings-checksum"]

    assert checksum() == checksum()
    assert checksum() != checksum(settings={"QUEUE_LIMIT": 7})


def test_a_stopping_gateway_has_the_time_that_its_settings_promise(render):
    spec = dict(pod_specs(render()))["berth-gateway"]
    settings = Settings({})
    promised = settings.seconds("GATEWAY_GRACE") + settings.seconds("GATEWAY_DRAIN")
    assert spec["terminationGracePeriodSeconds"] > promised


def test_ports_and_the_store_follow_their_settings(render):
    objects = render(settings={"PORT": 9090, "HEALTH_PORT": 9091, "STORE_ROOT": "/mnt/berth"})
    specs = dict(pod_specs(objects))
    assert specs["berth-gateway"]["containers"][0]["ports"][0]["containerPort"] == 9090
    assert specs["berth-controller"]["containers"][0]["ports"][0]["containerPort"] == 9091
    store = next(v for v in specs["berth-agent"]["volumes"] if v["name"] == "store")
    assert store["hostPath"]["path"] == "/mnt/berth"


@pytest.mark.parametrize("setting", REGISTRY, ids=lambda setting: setting.name)
def test_the_default_that_the_chart_knows_is_the_registrys(setting):
    """Where a template falls back to a default of its own, it is the same."""
    for path in sorted((CHART / "templates").glob("*.yaml")):
        for line in path.read_text().splitlines():
            if f'"name" "{setting.name}" "default"' in line:
                assert f'"default" "{setting.default}"' in line, path.name


@pytest.mark.parametrize(
    ("values", "word"),
    [
        pytest.param("settings.NO_SUCH=1", "NO_SUCH", id="a setting that is none"),
        pytest.param("gateway.replica=2", "replica", id="a misspelt value"),
        pytest.param("image.pullPolicy=Sometimes", "pullPolicy", id="a pull policy that is none"),
        pytest.param("agent.hostPaths={data}", "hostPaths", id="a host path that is not absolute"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm, values, word):
    answer = helm("template", "berth", str(CHART), "--kube-version", "1.37.2", "--set", values)
    assert answer.returncode != 0
    assert word in answer.stderr


def test_helm_finds_nothing_wrong(helm):
    answer = helm("lint", "--strict", "--kube-version", "1.37.2", str(CHART))
    assert answer.returncode == 0, answer.stdout


def test_the_charts_version_is_the_distributions():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = f'version = "{chart["appVersion"]}"'
    assert version in (ROOT / "pyproject.toml").read_text()
    assert chart["version"] == chart["appVersion"]


def test_the_schema_names_every_value():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) <= set(schema["properties"])
