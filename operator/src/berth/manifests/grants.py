"""Which right lets Berth read one Secret, and no other?"""

from berth.api.meta import LABEL_MANAGED
from berth.manifests.names import MANAGED_BY, Object

READERS = ("berth-controller", "berth-agent")
"""The service accounts that fetch: headers are read by the one, files by the other."""
_RBAC = "rbac.authorization.k8s.io"


def token_grant(secret: str, *, namespace: str, system_namespace: str) -> list[Object]:
    """A Role for one Secret by name, and its binding to Berth's two readers."""
    name = f"berth-token-{secret}"[:253].rstrip("-.")
    metadata = {"name": name, "namespace": namespace, "labels": {LABEL_MANAGED: MANAGED_BY}}
    role = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": metadata,
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["secrets"],
                "resourceNames": [secret],
                "verbs": ["get"],
            }
        ],
    }
    binding = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [
            {"kind": "ServiceAccount", "name": reader, "namespace": system_namespace}
            for reader in READERS
        ],
    }
    return [role, binding]
