"""Where do a node's mounts go, and how is what is mounted below a folder of ours taken away?"""

import json
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path

from cluster.processes import ProcessTable

HOLDER = "mount-namespace"
# Folders that containerd, its shims, the CNI library and the kubelet have written into their source.
PRIVATE = (
    Path("/run/containerd"),
    Path("/var/lib/cni"),
    Path("/var/lib/kubelet"),
    Path("/var/log/containers"),
)


def below(folder: Path) -> list[Path]:
    """Mount points at or below `folder`, the last mounted first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Blanks in paths are written as octal escapes.
        point = Path(line.split()[4].encode().decode("unicode_escape"))
        if point == folder or folder in point.parents:
            found.append(point)
    return found[::-1]


def start_namespace(processes: ProcessTable, *, folder: Path) -> list[str]:
    """Starts a mount namespace that a process of ours holds; the command that enters it.

    Within, `PRIVATE` folders are ours (they lie below `folder`), and all is shared, as systemd has
    it on real nodes: volumes that the kubelet mounts reach running pods. What is mounted in the
    namespace goes with its last process.
    """
    for path in PRIVATE:
        (folder / path.name).mkdir(parents=True, exist_ok=True)
    _make_mount_points(processes.state_dir)
    binds = [f"mount --bind {shlex.quote(str(folder / path.name))} {path}" for path in PRIVATE]
    script = " && ".join([*binds, "exec sleep infinity"])
    command = ["unshare", "--mount", "--propagation=shared", "sh", "-c", script]
    holder = processes.start(HOLDER, command)
    processes.wait_until(
        lambda: Path(f"/proc/{holder.pid}/comm").read_text().strip() == "sleep",
        what="the mount namespace is there",
        process=HOLDER,
        deadline_s=10,
    )
    return ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--"]


def stop_namespace(processes: ProcessTable) -> None:
    processes.stop(HOLDER)
    record = processes.state_dir / "made-folders.json"
    for path in json.loads(record.read_text()) if record.exists() else []:
        # Another runtime may use it by now.
        with suppress(OSError):
            Path(path).rmdir()


def _make_mount_points(state_dir: Path) -> None:
    """On the host they stay empty; those that were not there before are written down."""
    record = state_dir / "made-folders.json"
    if record.exists():
        return
    record.write_text(json.dumps([str(path) for path in PRIVATE if not path.exists()]))
    for path in PRIVATE:
        path.mkdir(parents=True, exist_ok=True)


def unmount_all(folder: Path) -> None:
    """Lazily, so that a file still open somewhere does not keep the mount in our way."""
    for point in below(folder):
        subprocess.run(["umount", "--lazy", str(point)], check=False, capture_output=True)


def file_system(folder: Path) -> str:
    answer = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(folder)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return answer.stdout.strip()
