"""How do the project's own Containerfiles become images where no image registry can be reached?

The base that a Containerfile starts from is an argument. In production it is a published image;
here it is a minimal Debian made from Debian's packages, kept outside the checkout.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster import cache, mounts, packages
from cluster.problem import Problem
from cluster.progress import say

CHECKOUT = Path(__file__).parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Build arguments that tell where Python packages come from; passed on where they are set.
INDEX_SETTINGS = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX")


@dataclass(frozen=True)
class Base:
    """A minimal Debian; `packages` are what the image adds by itself on a published base."""

    name: str
    suite: str
    packages: tuple[str, ...]

    @property
    def reference(self) -> str:
        key = cache.digest(self.suite, *self.packages, *LEFT_OUT)
        return f"localhost/berth/base-{self.name}:{key}"


@dataclass(frozen=True)
class Image:
    """One image of the project; `sources` are all that its Containerfile copies."""

    name: str
    containerfile: Path
    base: Base
    sources: tuple[Path, ...]

    def reference(self) -> str:
        """Its tag is a hash of what it is made from now, so that a change of code is a new image."""
        folders = [path for path in self.sources if path.is_dir()]
        files = [path for path in self.sources if not path.is_dir()]
        key = cache.digest(
            self.base.reference, self.containerfile, *files, cache.tree_digest(*folders)
        )
        return f"localhost/berth/{self.name}:{key}"


@dataclass(frozen=True)
class Built:
    """An image as a file: an archive, and the name that it is imported under."""

    reference: str
    archive: Path


# As published minimal images do.
LEFT_OUT = ("/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/locale")
PACKAGE = CHECKOUT / "operator" / "src" / "berth"
OPERATOR = Image(
    name="operator",
    containerfile=CHECKOUT / "operator" / "Containerfile",
    base=Base("python", "bookworm", ("ca-certificates", "python3", "python3-venv")),
    sources=(PACKAGE, CHECKOUT / "pyproject.toml", CHECKOUT / "uv.lock", CHECKOUT / "README.md"),
)
LLAMACPP = Image(
    name="llamacpp",
    containerfile=CHECKOUT / "runner-image" / "llamacpp" / "Containerfile",
    base=Base("llamacpp", "sid", ("llama.cpp", "python3")),
    sources=(PACKAGE / "runner", PACKAGE / "__init__.py"),
)
IMAGES = (OPERATOR, LLAMACPP)


def built(image: Image) -> Built:
    """The image as of now; builds it where the cache has none of these very inputs."""
    reference = image.reference()
    path = cache.entry(
        "images",
        f"{image.name}-{reference.rpartition(':')[2]}.tar",
        make=lambda draft: _build(image, reference=reference, target=draft),
    )
    # Older code is never asked for again; its layers stay in the builder's own store.
    for old in path.parent.glob(f"{image.name}-*.tar"):
        if old != path:
            old.unlink(missing_ok=True)
    return Built(reference, path)


def _build(image: Image, *, reference: str, target: Path) -> None:
    packages.ensure(packages.IMAGES)
    cache.require_space(target.parent, needed=4 << 30, purpose=f"the image {image.name}")
    with cache.locked("buildah"):
        try:
            _ensure_base(image.base)
            say(f"building the image {image.name}")
            _bud(
                "--file", str(image.containerfile), "--build-arg", f"BASE={image.base.reference}",
                *_host_settings(), "--tag", reference, str(CHECKOUT),
            )  # fmt: skip
            say(f"writing the image {image.name}")
            # This kind of archive is not compressed: it is written and read on one machine.
            _buildah("push", reference, f"docker-archive:{target}:{reference}")
        finally:
            # The builder leaves its store mounted on itself.
            mounts.unmount_all(_store())


def _ensure_base(base: Base) -> None:
    if _has(base.reference):
        return
    say(f"making a minimal Debian {base.suite} with {', '.join(base.packages)}")
    context = cache.root() / "bases" / base.name
    context.mkdir(parents=True, exist_ok=True)
    tar = context / "base.tar"
    tar.unlink(missing_ok=True)
    _run(
        # The archive's own date may lie ahead of or behind this host's clock.
        ["mmdebstrap", "--variant=minbase", '--aptopt=Acquire::Check-Valid-Until "false"',
         *(f"--dpkgopt=path-exclude={path}/*" for path in LEFT_OUT),
         f"--include={','.join(base.packages)}", base.suite, str(tar)],
        purpose=f"making the base {base.name}",
        todo="the Debian mirror may be out of reach",
    )  # fmt: skip
    (context / "Containerfile").write_text("FROM scratch\nADD base.tar /\n")
    _bud("--tag", base.reference, str(context))
    tar.unlink()


def _host_settings() -> list[str]:
    """What a build needs to know of this host to reach the package index; none of it is kept."""
    found = [f"--build-arg={name}" for name in INDEX_SETTINGS if name in os.environ]
    if CERTIFICATES.exists():
        found.append(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
    return found


def _has(reference: str) -> bool:
    answer = subprocess.run(
        [*_command(), "inspect", "--type", "image", reference], capture_output=True, check=False
    )
    return answer.returncode == 0


def _bud(*args: str) -> None:
    # Without namespaces of its own a build works inside containers and small virtual machines.
    _buildah("bud", "--isolation=chroot", "--network=host", "--layers", *args)


def _buildah(*args: str) -> None:
    _run(
        [*_command(), *args],
        purpose=f"`buildah {args[0]}`",
        todo="see the output above; a package that could not be fetched means no way to the index",
    )


def _command() -> list[str]:
    return ["buildah", "--root", str(_store()), "--runroot", str(_store().with_name("buildah-run"))]


def _builder_env() -> dict[str, str]:
    """Settings that keep the builder out of /etc, where it would make a folder for networks."""
    config = cache.root() / "containers.conf"
    networks = cache.root() / "buildah-networks"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f'[network]\nnetwork_config_dir = "{networks}"\n')
    return {"CONTAINERS_CONF": str(config)}


def _store() -> Path:
    return cache.root() / "buildah"


def _run(command: list[str], *, purpose: str, todo: str) -> None:
    log = cache.root() / "log" / f"{Path(command[0]).name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        status = subprocess.run(
            command, env=os.environ | _builder_env(), check=False, stdout=output, stderr=output
        ).returncode
    if status != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise Problem(f"{purpose} failed:\n{tail}\n", todo=f"{todo} ({log})")
