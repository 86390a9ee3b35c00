"""How are the programs of an image run on this host, without a container runtime? In a root folder."""

import json
import os
import tarfile
from pathlib import Path


def unpack(archive: Path, root: Path) -> None:
    """Writes the layers of a docker archive into a folder that `chroot` can enter; needs root."""
    with tarfile.open(archive) as image:
        manifest = json.load(image.extractfile("manifest.json"))  # type: ignore[arg-type]
        for name in manifest[0]["Layers"]:
            with tarfile.open(fileobj=image.extractfile(name)) as layer:
                layer.extractall(root, filter="tar")
    (root / "models").mkdir(exist_ok=True)
    null = root / "dev" / "null"
    if not null.exists():
        null.parent.mkdir(exist_ok=True)
        os.mknod(null, 0o666 | 0o020000, os.makedev(1, 3))
