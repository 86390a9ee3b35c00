"""Where do a node's mounts go, and how is what is mounted below a folder of ours taken away?"""

import subprocess
from pathlib import Path

from cluster.processes import ProcessTable

HOLDER = "mount-namespace"


def below(folder: Path) -> list[Path]:
    """Mount points at or below `folder`, the last mounted first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Blanks in paths are written as octal escapes.
        point = Path(line.split()[4].encode().decode("unicode_escape"))
        if point == folder or folder in point.parents:
            found.append(point)
    return found[::-1]


def start_namespace(processes: ProcessTable) -> list[str]:
    """Starts a mount namespace that a process of ours holds; the command that enters it.

    All of it is shared within, as systemd has it on real nodes: volumes that the kubelet mounts
    reach running pods. What is mounted in it goes with its last process.
    """
    holder = processes.start(
        HOLDER, ["unshare", "--mount", "--propagation=shared", "sleep", "infinity"]
    )
    processes.wait_until(
        lambda: Path(f"/proc/{holder.pid}/comm").read_text().strip() == "sleep",
        what="the mount namespace is there",
        process=HOLDER,
        deadline_s=10,
    )
    return ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--"]


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
