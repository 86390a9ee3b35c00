"""What is in the hub? Repositories, their branches, commits and files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

LFS_SUFFIXES = {".gguf", ".safetensors", ".bin", ".pt"}
LFS_SIZE = 10 << 20
"""A file that is larger, or has one of the suffixes, lives in LFS, as the hub does it."""
BLOCK = 1 << 20


@dataclass(frozen=True)
class Blob:
    """A file's content: bytes in memory, or a path that is read in pieces."""

    name: str
    content: bytes | Path

    @cached_property
    def size(self) -> int:
        """Bytes."""
        if isinstance(self.content, bytes):
            return len(self.content)
        return self.content.stat().st_size

    def read(self, start: int, count: int) -> bytes:
        """A piece; shorter only at the end."""
        if isinstance(self.content, bytes):
            return self.content[start : start + count]
        with self.content.open("rb") as file:
            file.seek(start)
            return file.read(count)

    @cached_property
    def sha256(self) -> str:
        """Of the content; a sidecar ``NAME.sha256`` spares reading a huge sparse file."""
        if isinstance(self.content, Path):
            sidecar = self.content.with_name(self.content.name + ".sha256")
            if sidecar.exists():
                return sidecar.read_text().split()[0]
        return self._digest(hashlib.sha256())

    @cached_property
    def oid(self) -> str:
        """What git calls the file: SHA-1 over ``blob SIZE\\0`` and the content or LFS pointer."""
        if self.is_lfs:
            pointer = (
                "version https://git-lfs.github.com/spec/v1\n"
                f"oid sha256:{self.sha256}\nsize {self.size}\n"
            ).encode()
            return hashlib.sha1(b"blob %d\0" % len(pointer) + pointer).hexdigest()
        return self._digest(hashlib.sha1(b"blob %d\0" % self.size))

    @property
    def is_lfs(self) -> bool:
        """Served by the CDN after a redirect."""
        return Path(self.name).suffix in LFS_SUFFIXES or self.size > LFS_SIZE

    def _digest(self, digest: "hashlib._Hash") -> str:
        for start in range(0, self.size, BLOCK):
            digest.update(self.read(start, BLOCK))
        return digest.hexdigest()


@dataclass
class Repo:
    """One model repository."""

    name: str
    gated: bool = False
    tokens: set[str] = field(default_factory=set)
    """Tokens that a gated repository accepts."""
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes | Path], branch: str) -> str:
        """Make these files the whole content of a branch; returns the commit's SHA-1."""
        blobs = {name: Blob(name, content) for name, content in sorted(files.items())}
        seed = f"{self.name}@{branch} {len(self.commits)} {sorted(blobs)}"
        sha = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[sha] = blobs
        self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        """The commit of a branch, of ``refs/heads/BRANCH``, or of a full or short SHA."""
        name = revision.removeprefix("refs/heads/")
        if name in self.branches:
            return self.branches[name]
        found = [sha for sha in self.commits if len(name) >= 7 and sha.startswith(name)]
        return found[0] if len(found) == 1 else None


def read_root(root: Path) -> dict[str, Repo]:
    """Repositories below a folder: ``ORG/NAME/…`` is main, ``ORG/NAME@BRANCH/…`` a branch.

    A file ``.hub.json`` in a repository is not served: ``{"gated": true, "tokens": ["…"]}``.
    """
    import json

    repos: dict[str, Repo] = {}
    for folder in sorted(p for p in root.glob("*/*") if p.is_dir() and p.parent.name != "files"):
        name, _, branch = folder.name.partition("@")
        full = f"{folder.parent.name}/{name}"
        repo = repos.setdefault(full, Repo(full))
        settings = folder / ".hub.json"
        if settings.exists():
            values = json.loads(settings.read_text())
            repo.gated, repo.tokens = values.get("gated", False), set(values.get("tokens", []))
        files = {
            str(path.relative_to(folder)): path
            for path in folder.rglob("*")
            if path.is_file() and path.name != ".hub.json" and path.suffix != ".sha256"
        }
        repo.commit(files, branch or "main")
    return repos
