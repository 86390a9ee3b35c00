"""How does a container runtime of our own run beside whatever the host has, and end with its pods?"""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster import mounts
from cluster.processes import ProcessTable, start_time

CAP_SYS_RESOURCE = 1 << 24
PAUSE_IMAGE = "localhost/berth/pause:1"
START_DEADLINE_S = 30


@dataclass(frozen=True)
class Containerd:
    """One containerd below `folder`; its programs are kept in the table of the cluster."""

    folder: Path
    processes: ProcessTable

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    def start(self, *, cni_conf: Path, enter: Sequence[str]) -> None:
        """`enter` is the command that enters the mount namespace it works in."""
        config = self.folder / "containerd.toml"
        config.write_text(self._config(cni_conf))
        self.processes.start("containerd", [*enter, "containerd", "--config", str(config)])
        self.processes.wait_until(
            lambda: self.ctr("version").returncode == 0,
            what="containerd answers",
            process="containerd",
            deadline_s=START_DEADLINE_S,
        )

    def ctr(self, *args: str) -> "subprocess.CompletedProcess[str]":
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *args]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def images(self) -> set[str]:
        return set(self.ctr("images", "list", "--quiet").stdout.split())

    def remove_containers(self) -> None:
        """Kills every container at once; what containerd cannot end is ended by `end_shims`."""
        for container in self.ctr("tasks", "list", "--quiet").stdout.split():
            self.ctr("tasks", "delete", "--force", container)

    def end_shims(self) -> None:
        """Each container's shim outlives containerd by design: killed here by its own arguments."""
        for pid in self.shims():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def shims(self) -> Iterator[int]:
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and self._is_shim(folder) and start_time(int(folder.name)):
                yield int(folder.name)

    def _is_shim(self, folder: Path) -> bool:
        try:
            argv = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            return False
        return Path(argv[0]).name == "containerd-shim-runc-v2" and str(self.socket) in argv

    def _config(self, cni_conf: Path) -> str:
        may_lower_oom_score = _effective_capabilities() & CAP_SYS_RESOURCE
        on_overlay = mounts.file_system(self.folder).startswith("overlay")
        return f"""
version = 2
root = "{self.folder}/root"
state = "{self.folder}/state"
# It makes /opt/containerd for programs that nobody here installs.
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
  address = "{self.socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = {"false" if may_lower_oom_score else "true"}
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni_conf}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{"native" if on_overlay else "overlayfs"}"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{self.folder}/runc"
        SystemdCgroup = false
"""


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
