"""Where does each kind of object live in the API?"""

from dataclasses import dataclass

from berth.api.kinds import BY_CLASS
from berth.api.meta import API_VERSION, Resource


@dataclass(frozen=True)
class Ref:
    """A kind of object and its place in the API's paths."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path below the server's address; an empty namespace means all of them."""
        root = (
            f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        )
        parts = [root]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


def ref_of(cls: type[Resource]) -> Ref:
    """The Ref of one of Berth's own kinds."""
    info = BY_CLASS[cls]
    return Ref(API_VERSION, info.kind, info.plural, info.namespaced)


PODS = Ref("v1", "Pod", "pods", namespaced=True)
NODES = Ref("v1", "Node", "nodes", namespaced=False)
NAMESPACES = Ref("v1", "Namespace", "namespaces", namespaced=False)
SECRETS = Ref("v1", "Secret", "secrets", namespaced=True)
SERVICES = Ref("v1", "Service", "services", namespaced=True)
CONFIG_MAPS = Ref("v1", "ConfigMap", "configmaps", namespaced=True)
CLAIMS = Ref("v1", "PersistentVolumeClaim", "persistentvolumeclaims", namespaced=True)
VOLUMES = Ref("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
EVENTS = Ref("events.k8s.io/v1", "Event", "events", namespaced=True)
LEASES = Ref("coordination.k8s.io/v1", "Lease", "leases", namespaced=True)
CRDS = Ref(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)
