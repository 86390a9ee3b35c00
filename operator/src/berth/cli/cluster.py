"""How does a command reach the cluster that it is about, and follow an object there?"""

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from pydantic import ValidationError

from berth.api.meta import Resource
from berth.cli.errors import CommandError
from berth.kube.client import ApiError, ApiUnreachableError, Kube, Object
from berth.kube.refs import Ref, ref_of

R = TypeVar("R", bound=Resource)
T = TypeVar("T")
_OWN_FILE = Path("~/.kube/config")
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True)
class Target:
    """Which cluster, and which namespace of it; empty texts mean the kubeconfig's own choice."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    @property
    def in_namespace(self) -> str:
        """The namespace that a command without ``-n`` means."""
        return self.namespace or _chosen_namespace(self) or "default"


def cluster_options(command: Callable[..., T]) -> Callable[..., T]:
    """The options of every command that talks to a cluster; they arrive as one ``target``."""

    # `wraps` keeps the options and arguments that were put on the command before.
    @functools.wraps(command)
    def with_target(*args: Any, kubeconfig: str, context: str, namespace: str, **rest: Any) -> T:
        return command(*args, target=Target(kubeconfig, context, namespace), **rest)

    for option in (
        click.option(
            "-n", "--namespace", default="", help="Namespace; default: the context's own."
        ),
        click.option("--context", default="", help="Context of the kubeconfig."),
        click.option("--kubeconfig", default="", envvar="KUBECONFIG", help="Kubeconfig file."),
    ):
        option(with_target)
    return with_target


def run(work: Coroutine[Any, Any, T], *, attempted: str) -> T:
    """The result of asynchronous work; what the API server refuses becomes a CommandError."""
    try:
        return asyncio.run(work)
    except ApiUnreachableError as err:
        raise CommandError(
            attempted,
            wrong=f"the API server did not answer ({err})",
            todo="see that the cluster runs and that --kubeconfig and --context name it",
        ) from err
    except ApiError as err:
        raise CommandError(attempted, wrong=err.message, todo=_what_to_do(err)) from err
    except ValidationError as err:
        raise CommandError(
            attempted,
            wrong=f"an object is not of this release's form ({err.error_count()} faults): {err}",
            todo="use the `berth` command of the release that is installed (`berth version`)",
        ) from err


def _what_to_do(err: ApiError) -> str:
    if err.status in (401, 403):
        return "ask whoever runs the cluster for this right, or use another --context"
    if err.not_found:
        return "see `berth models -A` for what there is, and -n for another namespace"
    return "try again; `berth doctor` tells whether Berth is well"


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Kube]:
    """A connection to the target for the time of the block."""
    _check_kubeconfig(target)
    async with await Kube.connect(
        kubeconfig=target.kubeconfig or None, context=target.context or None
    ) as kube:
        yield kube


async def get(kube: Kube, cls: type[R], name: str, namespace: str = "") -> R:
    """One of Berth's objects, parsed."""
    return cls.model_validate(await kube.get(ref_of(cls), name, namespace))


async def list_all(kube: Kube, cls: type[R], namespace: str = "") -> list[R]:
    """Berth's objects of a kind; an empty namespace means all of them."""
    objects, _ = await kube.list_all(ref_of(cls), namespace)
    return [cls.model_validate(obj) for obj in objects]


async def follow(kube: Kube, ref: Ref, name: str, namespace: str = "") -> AsyncGenerator[Object]:
    """One object now and after every change; ends when it is deleted."""
    fields = f"metadata.name={name}"
    while True:
        objects, version = await kube.list_all(ref, namespace, fields=fields)
        if not objects:
            return
        yield objects[0]
        try:
            async for kind, obj in kube.watch(ref, version, namespace, fields=fields):
                if kind == "DELETED":
                    return
                if kind != "BOOKMARK":
                    yield obj
        except ApiError as err:
            if not err.expired:
                raise


def _check_kubeconfig(target: Target) -> None:
    """Raises CommandError where no way to a cluster is known."""
    contexts = [entry.get("name") for config in _configs(target) for entry in _listed(config)]
    if target.context and target.context not in contexts:
        raise CommandError(
            f"using the context {target.context}",
            wrong=f"the kubeconfig has only: {', '.join(map(str, contexts)) or 'none'}",
            todo="name one of these, or another --kubeconfig",
        )
    if not contexts and (target.kubeconfig or not _TOKEN.exists()):
        raise CommandError(
            "reaching the cluster",
            wrong=f"no context in {target.kubeconfig or _OWN_FILE}",
            todo="name a kubeconfig with --kubeconfig or KUBECONFIG",
        )


def _chosen_namespace(target: Target) -> str:
    configs = _configs(target)
    current = target.context or next(
        (c["current-context"] for c in configs if c.get("current-context")), ""
    )
    for config in configs:
        for entry in _listed(config):
            if entry.get("name") == current:
                return str((entry.get("context") or {}).get("namespace") or "")
    return ""


def _listed(config: Object) -> list[Object]:
    return config.get("contexts") or []


def _configs(target: Target) -> list[Object]:
    """The kubeconfig files that there are; several are separated as in KUBECONFIG."""
    paths = [Path(part) for part in target.kubeconfig.split(":") if part] or [_OWN_FILE]
    return [
        yaml.safe_load(path.expanduser().read_text()) or {}
        for path in paths
        if path.expanduser().is_file()
    ]
