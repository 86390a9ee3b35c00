"""Which objects does a file declare, and what do the headers of their sources say?"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from pydantic import ValidationError

from berth.api.meta import GROUP, Resource
from berth.api.model import FactsStatus, Model
from berth.api.profile import Profile
from berth.api.residency import Residency
from berth.cli.errors import CommandError
from berth.controller.onlooker import files_of
from berth.controller.parts import (
    WEIGHTS,
    Part,
    facts_status,
    header_source,
    host_path_of,
    parts_of,
)
from berth.controller.pricing import Unpriceable
from berth.controller.resolve import source_hash
from berth.controller.store import Store
from berth.headers import HeaderError, HeaderRequest, HeaderResult, PathSource
from berth.headers.read import read_source
from berth.reasons import Reason
from berth.settings import Settings

KINDS: dict[str, type[Resource]] = {"Model": Model, "Profile": Profile, "Residency": Residency}
T = TypeVar("T")
EVERYWHERE = ("0.0.0.0/0", "::/0")
"""The command line is its user's own: any address may be reached, with that user's own token."""


@dataclass(frozen=True)
class Reading:
    """How sources are reached from here."""

    weights: str = ""
    """A local copy of the weights of the one Model that a file declares."""
    endpoint: str = ""
    token: str | None = field(default=None, repr=False)


token_option = click.option("--token", envvar="HF_TOKEN", help="A token for the hub.")


def reading_options(command: Callable[..., T]) -> Callable[..., T]:
    """The options of every command that reads headers; they arrive as one ``reading``."""

    @functools.wraps(command)
    def with_reading(*args: Any, weights: str, token: str | None, **rest: Any) -> T:
        return command(*args, reading=Reading(weights, token=token), **rest)

    weights_option = click.option(
        "--weights",
        default="",
        metavar="PATH",
        help="A local copy of the weights, to read its header.",
    )
    return token_option(weights_option(with_reading))


def load_objects(path: str, namespace: str) -> list[Resource]:
    """The Models, Profiles and Residencies of a YAML file (`-`: standard input), parsed.

    Raises CommandError. Other kinds are left out; fields that are none of ours are told.
    """
    found = []
    for body in load_documents(path):
        version, kind = str(body.get("apiVersion")), str(body.get("kind"))
        if version.startswith(f"{GROUP}/") and kind in KINDS:
            found.append(parsed(path, body, namespace))
    if not found:
        raise CommandError(
            f"reading {path}",
            wrong="it declares no Model, Profile or Residency",
            todo=f"write objects with apiVersion: {GROUP}/v1alpha1",
        )
    return found


def load_documents(path: str) -> list[dict[str, Any]]:
    """The YAML documents of a file. Raises CommandError."""
    try:
        with click.open_file(path, encoding="utf-8") as file:
            documents = [body for body in yaml.safe_load_all(file) if body is not None]
    except OSError as err:
        raise CommandError(
            f"reading {path}", wrong=str(err.strerror), todo="name a file, or - for standard input"
        ) from err
    except yaml.YAMLError as err:
        raise CommandError(f"reading {path}", wrong=str(err), todo="correct its YAML") from err
    if not all(isinstance(body, dict) for body in documents):
        raise CommandError(
            f"reading {path}", wrong="a document of it is no mapping", todo="write whole objects"
        )
    return documents


def parsed(path: str, body: dict[str, Any], namespace: str) -> Resource:
    """One object of ours, of a kind in ``KINDS``. Raises CommandError."""
    cls = KINDS.get(str(body.get("kind")))
    if cls is None:
        kinds = ", ".join(KINDS)
        raise CommandError(
            f"reading {path}",
            wrong=f"a {body.get('kind')} is of no use here",
            todo=f"write {kinds}",
        )
    meta = body.get("metadata") or {}
    name = f"{cls.__name__} {meta.get('name') or 'without a name'}"
    if cls is not Residency:
        meta = {"namespace": namespace} | meta
    try:
        found = cls.model_validate({**body, "metadata": meta})
    except ValidationError as err:
        raise CommandError(
            f"reading {name} of {path}", wrong=told(err), todo="see docs/reference/crds.md"
        ) from err
    if isinstance(found, Model) and len(found.spec.source.wire()) != 1:
        raise CommandError(
            f"reading {name} of {path}",
            wrong="spec.source needs exactly one of huggingFace, url, path, image",
            todo="write one of them",
        )
    check_fields(found, body.get("spec") or {}, name)
    return found


def check_fields(found: Resource, spec: dict[str, Any], name: str) -> None:
    """Tell of fields that a spec has and its kind has not."""
    shape = found.model_dump(by_alias=True, mode="json")["spec"]
    for unknown in unknown_fields(spec, shape, "spec"):
        click.echo(f"Note: {name}: {unknown} is no field and is ignored.", err=True)


def told(err: ValidationError) -> str:
    """The faults of a validation in one sentence."""
    faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in err.errors()[:4]]
    return "; ".join(faults)


def unknown_fields(body: object, known: object, path: str) -> Iterator[str]:
    """Paths of fields that the type ignores; maps with names of the user's own are left alone."""
    if not isinstance(body, dict) or not isinstance(known, dict):
        return
    for name, value in body.items():
        if name in known:
            yield from unknown_fields(value, known[name], f"{path}.{name}")
        else:
            yield f"{path}.{name}"


# Headers.


def read_sources(
    models: Sequence[Model], store: Store, reading: Reading, settings: Settings
) -> dict[str, FactsStatus | Unpriceable]:
    """What the sources of these Models hold, by ``source_hash``, where nobody has read them yet."""
    if reading.weights and len(models) != 1:
        raise CommandError(
            "reading --weights",
            wrong=f"{len(models)} Models are declared, and the file is of one",
            todo="put that Model into a file of its own",
        )
    reading = replace(reading, endpoint=reading.endpoint or settings.text("HF_ENDPOINT"))
    found: dict[str, FactsStatus | Unpriceable] = {}
    for model in models:
        source = source_hash(model)
        if source not in found and (reading.weights or not _is_known(model, store)):
            found[source] = _facts(model, source, reading)
    return found


def _is_known(model: Model, store: Store) -> bool:
    try:
        files_of(model, store, {})
    except Unpriceable:
        return False
    return True


def _facts(model: Model, source: str, reading: Reading) -> FactsStatus | Unpriceable:
    parts = parts_of(model)
    try:
        results = {part.name: _part(model, part, reading) for part in parts}
        return _placeless(facts_status(results, parts, source), reading)
    except Unpriceable as err:
        return err
    except HeaderError as err:
        known = {reason.value: reason for reason in Reason}
        reason = known.get(err.reason.value, Reason.SOURCE_UNREACHABLE)
        return Unpriceable(reason, err.message, word=err.reason.value)


def _placeless(facts: FactsStatus, reading: Reading) -> FactsStatus:
    """Where a local copy lies says nothing of where a node fetches from."""
    if not reading.weights:
        return facts
    files = [file.model_copy(update={"url": ""}) for file in facts.files]
    return facts.model_copy(update={"files": files})


def _part(model: Model, part: Part, reading: Reading) -> HeaderResult:
    source = header_source(part.source)
    local = host_path_of(model)
    if part.name == WEIGHTS and reading.weights:
        source = PathSource(reading.weights)
    elif source is None and part.name == WEIGHTS and local and Path(local).exists():
        source = PathSource(local)
    if source is None:
        text = f"its {part.role} cannot be seen from here: name a local copy with --weights"
        raise Unpriceable(Reason.NEEDS_UNKNOWN, text)
    return read_source(
        HeaderRequest(source, endpoint=reading.endpoint, token=reading.token, allow=EVERYWHERE)
    )
