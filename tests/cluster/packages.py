"""Which programs of the host does the cluster use, and who installs those that are missing?"""

import os
import shutil
import subprocess
from pathlib import Path

from cluster import cache
from cluster.problem import Problem
from cluster.progress import say

# What to look for, and Debian's package that brings it.
CONTROL_PLANE = {"etcd": "etcd-server"}
NODE = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "nft": "nftables",
    "conntrack": "conntrack",
    "ip": "iproute2",
}
IMAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}
APT_OPTIONS = ("-o", "Dpkg::Use-Pty=0", "-o", "Acquire::Retries=3")


def missing(wanted: dict[str, str]) -> list[str]:
    """The packages whose program is not on this host."""
    # A user's own search path often lacks the folders where network tools lie.
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return sorted({pkg for name, pkg in wanted.items() if shutil.which(name, path=path) is None})


def ensure(*wanted: dict[str, str]) -> None:
    """Installs what is missing with apt; raises Problem where that cannot be done."""
    absent = sorted({package for part in wanted for package in missing(part)})
    if not absent:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Problem(
            f"these are not installed: {', '.join(absent)}",
            todo="install them (the names are Debian's), or run as root on Debian",
        )
    # Parallel test workers ask for the same ones, and apt lets one in at a time.
    with cache.locked("apt"):
        say(f"installing {', '.join(absent)}")
        # The lists may be older than the archive: fetched anew once, and only when needed.
        if not _install(absent) and not (_apt("update") and _install(absent)):
            raise Problem(
                f"apt-get could not install {', '.join(absent)}",
                todo="see the message above; the Debian mirror may be out of reach",
            )


def _install(packages: list[str]) -> bool:
    return _apt("install", "--yes", "--no-install-recommends", *packages)


def _apt(*args: str) -> bool:
    command = ["apt-get", "-qq", *APT_OPTIONS, *args]
    # Packages must not start daemons of their own: ours run under our own folder.
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with _no_daemons():
        return (
            subprocess.run(command, env=env, check=False, stdout=subprocess.DEVNULL).returncode == 0
        )


class _no_daemons:  # noqa: N801 - used as a verb
    """Debian asks this file before it starts a service that a package brings."""

    FILE = Path("/usr/sbin/policy-rc.d")

    def __enter__(self) -> None:
        self.made = not self.FILE.exists()
        if self.made:
            self.FILE.write_text("#!/bin/sh\nexit 101\n")
            self.FILE.chmod(0o755)

    def __exit__(self, *_: object) -> None:
        if self.made:
            self.FILE.unlink()
