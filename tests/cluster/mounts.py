"""Which file systems are mounted below a folder of ours, and how are they all taken away?"""

import subprocess
from pathlib import Path


def below(folder: Path) -> list[Path]:
    """Mount points at or below `folder`, the last mounted first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Blanks in paths are written as octal escapes.
        point = Path(line.split()[4].encode().decode("unicode_escape"))
        if point == folder or folder in point.parents:
            found.append(point)
    return found[::-1]


def share(folder: Path) -> None:
    """Makes a folder a shared mount: volumes that the kubelet mounts later reach running pods."""
    if folder not in below(folder):
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    subprocess.run(["mount", "--make-rshared", str(folder)], check=True)


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
