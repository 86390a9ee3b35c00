"""How does one static program become a container image, without any builder?

An image of one file is a tar of a tar: written here in the OCI layout, always the same bytes for
the same program.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write(archive: Path, *, reference: str, program: Path, name: str, user: int = 65532) -> None:
    """An OCI archive whose entry point is `/name`; `reference` is what it is imported as."""
    layer = _tar([(name, program.read_bytes(), 0o755)])
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{name}"], "User": str(user)},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    configured = json.dumps(config).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, configured),
            "layers": [_descriptor(LAYER, layer)],
        }
    ).encode()
    named = {"io.containerd.image.name": reference}
    index = {
        "schemaVersion": 2,
        "manifests": [_descriptor(MANIFEST, manifest) | {"annotations": named}],
    }
    files = [("oci-layout", b'{"imageLayoutVersion": "1.0.0"}', 0o644),
             ("index.json", json.dumps(index).encode(), 0o644)]  # fmt: skip
    files += [(f"blobs/sha256/{_hex(blob)}", blob, 0o644) for blob in (layer, configured, manifest)]
    archive.write_bytes(_tar(files))


def _tar(files: Sequence[tuple[str, bytes, int]]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, data, mode in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return whole.getvalue()


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{_hex(blob)}"


def _hex(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()
