"""How does a test, a developer or CI get a real Kubernetes on one machine, and get rid of it?"""

from cluster.controlplane import ControlPlane, Settings, control_plane
from cluster.problem import Problem

__all__ = ["ControlPlane", "Problem", "Settings", "control_plane"]
