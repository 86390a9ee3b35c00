"""Which folder does a pod get, and is anything left of pods that have gone?"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from berth.agent.csi.mounts import Mounted
from berth.agent.loans import Loans
from berth.manifests.lent import ATTRIBUTE, SESSIONS, WEIGHTS

log = logging.getLogger(__name__)
_POD = "csi.storage.k8s.io/pod.name"
_NAMESPACE = "csi.storage.k8s.io/pod.namespace"
_EPHEMERAL = "csi.storage.k8s.io/ephemeral"


class BadVolumeError(Exception):
    """No such volume is given, to anybody."""


class NotLentError(Exception):
    """Nothing (yet) is lent to that pod."""


class Mounting(Protocol):
    """What volumes need of the kernel."""

    def bind(self, source: Path, target: Path) -> None: ...

    def unbind(self, target: Path) -> None: ...

    def all(self) -> list[Mounted]: ...


@dataclass(frozen=True)
class Volumes:
    """``root`` is the store, ``pods`` the kubelet's folder of pods, both as this process sees them."""

    root: Path
    pods: Path
    mounts: Mounting

    def publish(self, target: str, context: Mapping[str, str]) -> None:
        """Mount what the pod was lent. Asking again changes nothing.

        Who the pod is says the kubelet, not the pod: it fills these keys itself, over what the pod
        has written there. Raises BadVolumeError, NotLentError, OSError.
        """
        point = self._point(target)
        if context.get(_EPHEMERAL) != "true":
            raise BadVolumeError(
                "only volumes written in a pod itself are given, no persistent ones"
            )
        folder = self._folder(context)
        if self._at(point):
            return
        point.mkdir(parents=True, exist_ok=True)
        self.mounts.bind(folder, point)
        log.info("%s is mounted at %s", folder, point)

    def unpublish(self, target: str) -> None:
        """Take the volume away and its folder with it; one that is away already is no error."""
        point = self._point(target)
        for _ in self._at(point):
            self.mounts.unbind(point)
            log.info("nothing of the store is mounted at %s any more", point)
        if point.is_dir():
            point.rmdir()

    def sweep(self) -> list[Path]:
        """Unmount volumes that the kubelet has forgotten: no word of its own lies beside them."""
        left = [
            mount.point
            for mount in self._ours()
            if not (mount.point.parent / "vol_data.json").exists()
        ]
        for point in left:
            self.mounts.unbind(point)
            log.warning("%s was left behind and is unmounted", point)
        return left

    def _folder(self, context: Mapping[str, str]) -> Path:
        namespace, pod = context.get(_NAMESPACE, ""), context.get(_POD, "")
        loans = Loans(self.root)
        loan = loans.of(namespace, pod)
        if loan is None:
            raise NotLentError(
                f"nothing is lent to pod {namespace}/{pod} on this node: it is no runner of Berth's"
            )
        kind = context.get(ATTRIBUTE, "")
        folder = loans.folder(loan, kind)
        if folder is None:
            raise BadVolumeError(
                f"pod {namespace}/{pod} has no volume {kind!r}; {ATTRIBUTE} is {WEIGHTS} or {SESSIONS}"
            )
        if not folder.is_dir():
            raise NotLentError(f"the files of pod {namespace}/{pod} are not in the store: {folder}")
        return folder

    def _point(self, target: str) -> Path:
        point = Path(target)
        if self.pods not in point.parents or ".." in point.parts:
            raise BadVolumeError(f"{target} is not below {self.pods}")
        return point

    def _at(self, point: Path) -> list[Mounted]:
        return [mount for mount in self._ours() if mount.point == point]

    def _ours(self) -> list[Mounted]:
        """Mounts of the store's folders in pods, told by the kernel: no record of ours can be wrong."""
        mounts = self.mounts.all()
        above = [m for m in mounts if m.point in (self.root, *self.root.parents)]
        # The store is seen through the mount that lies deepest, and of several there the last one.
        seen = max(reversed(above), key=lambda m: len(m.point.parts), default=None)
        if seen is None:
            return []
        base = seen.root / self.root.relative_to(seen.point)
        return [
            m
            for m in mounts
            if m.device == seen.device and base in m.root.parents and self.pods in m.point.parents
        ]
