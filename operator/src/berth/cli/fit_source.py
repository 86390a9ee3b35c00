"""What do the headers say of what ``berth fit`` was given?"""

import re
from dataclasses import replace
from typing import Any

from berth.cli.errors import CommandError
from berth.facts import Facts
from berth.headers.errors import HeaderError
from berth.headers.local import read_path
from berth.headers.request import DEFAULT_ENDPOINT, HeaderRequest, HubSource, UrlSource

__all__ = ["DEFAULT_ENDPOINT", "read_facts", "read_kind"]

_HUB = re.compile(r"^hf://(?P<repo>[^@/]+/[^@/]+)(@(?P<revision>[^/]+))?(/(?P<file>.+))?$")
EVERYWHERE = ("0.0.0.0/0", "::/0")
"""The command line is its user's own: any address may be reached, with that user's own token."""


def read_facts(source: str, options: dict[str, Any]) -> Facts:
    """Facts of a file, a folder, an URL or ``hf://repo[@revision][/file]``. Raises CommandError."""
    try:
        request = _remote(source)
        if request is None:
            return read_path(source)[0]
        # Only here: a file on this machine needs no HTTP client.
        from berth.headers.read import read_source

        asked = replace(request, endpoint=options["endpoint"], token=options["token"])
        return read_source(replace(asked, allow=EVERYWHERE)).facts
    except HeaderError as err:
        raise CommandError(
            f"read {source}", wrong=f"{err.reason}: {err.message}", todo="check the source"
        ) from err
    except ValueError as err:
        raise CommandError(f"read {source!r}", wrong=str(err), todo="check the source") from err


def read_kind(source: str, kind: str, options: dict[str, Any]) -> Facts:
    """Facts of a file that must be a ``model``, ``mmproj`` or ``adapter``. Raises CommandError."""
    facts = read_facts(source, options)
    if facts.kind != kind:
        raise CommandError(
            f"read {source}",
            wrong=f"it is of the kind {facts.kind}",
            todo=f"name one that is {kind}",
        )
    return facts


def _remote(source: str) -> HeaderRequest | None:
    """A request for what is elsewhere; None for a path."""
    match = _HUB.match(source)
    if match is not None:
        files = (match["file"],) if match["file"] else ()
        return HeaderRequest(HubSource(match["repo"], match["revision"] or "main", files))
    if not source:
        raise ValueError("it names nothing")
    if source.startswith("hf://"):
        raise ValueError("it is not hf://OWNER/NAME[@REVISION][/FILE]")
    if re.match(r"^https?://", source):
        return HeaderRequest(UrlSource(source))
    return None
