"""How do pods find Services by name? A real CoreDNS, one replica, as clusters run it."""

from typing import Any

from cluster.node import CLUSTER_DNS

# A port above 1023, so that it needs neither root nor a capability.
PORT = 1053
COREFILE = f"""
.:{PORT} {{
  errors
  health
  ready
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    pods insecure
    ttl 5
  }}
  forward . /etc/resolv.conf
  cache 5
}}
"""
LABELS = {"k8s-app": "kube-dns"}


def manifests(image: str) -> list[dict[str, Any]]:
    metadata = {"name": "coredns", "namespace": "kube-system"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        *_reading_rights(),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"Corefile": COREFILE},
        },
        _service(),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": LABELS},
                "template": {"metadata": {"labels": LABELS}, "spec": _pod(image)},
            },
        },
    ]


def _reading_rights() -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    metadata = {"name": "system:coredns"}
    verbs = ["list", "watch"]
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": metadata,
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["services", "pods", "namespaces"],
                    "verbs": verbs,
                },
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": verbs,
                },
            ],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:coredns"},
            "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
        },
    ]


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": LABELS},
        "spec": {
            "selector": LABELS,
            "clusterIP": CLUSTER_DNS,
            "ports": [
                {"name": "dns", "port": 53, "targetPort": PORT, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "targetPort": PORT, "protocol": "TCP"},
            ],
        },
    }


def _pod(image: str) -> dict[str, Any]:
    return {
        "serviceAccountName": "coredns",
        # The host's own name servers, not this one again.
        "dnsPolicy": "Default",
        "containers": [
            {
                "name": "coredns",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": ["-conf", "/etc/coredns/Corefile"],
                "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
                "readinessProbe": {
                    "httpGet": {"path": "/ready", "port": 8181},
                    "periodSeconds": 1,
                },
                "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}},
                "resources": {
                    "requests": {"cpu": "20m", "memory": "32Mi"},
                    "limits": {"memory": "128Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "runAsNonRoot": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
