"""How do the facts of files that only a pod can see travel in its termination message?

The kubelet keeps 4096 bytes of it, so facts are JSON, compressed, in base 85, after a word for the
version. A pod's message is a stranger's word: whoever may create pods in its namespace may have
written it, so nothing in it is unpacked beyond what a real header's facts take.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from berth.facts import MAX_JSON, Facts
from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.keep import bounded, can_keep
from berth.headers.request import FileRef, HeaderResult

LIMIT = 4096
"""Bytes of a termination message that Kubernetes keeps."""
VERSION = "berth1:"
_MAX_PARTS = 20
_MAX_JSON = _MAX_PARTS * 2 * MAX_JSON
_MAX_RUN = 1 << 16
"""Layers, blocks and files of no model come near it."""
_MAX_ERROR = 512
_AS_FILES = -1
"""In place of ``file_bytes`` that are the files' sizes."""

Results = Mapping[str, HeaderResult]
"""What was read, by the name of the Model's part (``weights``, ``projector`` …)."""


def encode(results: Results) -> str:
    """The message of a successful inspection. Raises HeaderError when it is longer than is kept."""
    row = {name: _part(result) for name, result in results.items()}
    text = json.dumps(row, separators=(",", ":"), ensure_ascii=False)
    message = VERSION + base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    if len(message) > LIMIT:
        raise HeaderError(
            HeaderReason.FACTS_TOO_LARGE,
            f"the facts of its files take {len(message)} bytes, compressed; a pod can report {LIMIT}",
        )
    return message


def encode_error(err: HeaderError) -> str:
    """The message of an inspection that failed: plain, for it is also read by people."""
    row = {"reason": err.reason.value, "message": err.message[:_MAX_ERROR]}
    return json.dumps(row, ensure_ascii=False)


def decode(message: str) -> dict[str, HeaderResult]:
    """What an inspection found. Raises HeaderError: the pod's own, or that this is no report."""
    if message.startswith("{"):
        raise _told(message)
    if not message.startswith(VERSION):
        raise _no_report("it is of another version")
    try:
        row = json.loads(_unpacked(message.removeprefix(VERSION)))
        return {name: _result(part) for name, part in row.items()}
    except HeaderError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, zlib.error) as err:
        raise _no_report(str(err)) from err
    except RecursionError as err:
        raise _no_report("it is nested too deeply") from err


def _part(result: HeaderResult) -> dict[str, Any]:
    facts, sizes = result.facts, tuple(file.size for file in result.files)
    if facts.file_bytes == sizes:
        # Said once: hundreds of sizes are what makes a message too long.
        facts = replace(facts, file_bytes=(_AS_FILES,))
    return {
        "facts": facts.to_json(),
        "files": [[file.path, file.size] for file in result.files],
        "digest": result.digest,
    }


def _told(message: str) -> HeaderError:
    try:
        row = json.loads(message)
        return HeaderError(HeaderReason(row["reason"]), str(row["message"])[:_MAX_ERROR])
    except (ValueError, KeyError, TypeError, RecursionError):
        return _no_report("it is not whole")


def _no_report(why: str) -> HeaderError:
    return HeaderError(
        HeaderReason.SOURCE_FAILED, f"what the inspecting pod left cannot be read: {why[:200]}"
    )


def _unpacked(text: str) -> bytes:
    """At most so many bytes: a short message can stand for gigabytes of zeros."""
    opened = zlib.decompressobj()
    raw = opened.decompress(base64.b85decode(text), _MAX_JSON)
    if not opened.eof:
        raise ValueError("it is longer than facts can be, or cut")
    return raw


def _result(part: Mapping[str, Any]) -> HeaderResult:
    row = part["facts"]
    _check_runs(row)
    files = tuple(_file(name, size) for name, size in part["files"])
    facts = Facts.from_json(row)
    if facts.file_bytes == (_AS_FILES,):
        facts = replace(facts, file_bytes=tuple(file.size for file in files))
    facts = bounded(facts)
    if not all(can_keep(value) for value in facts.hparams.values()):
        raise ValueError("a number in it is none that a header can hold")
    if not files:
        raise ValueError("it names no file")
    return HeaderResult(facts, files, "", str(part["digest"]))


def _check_runs(row: Mapping[str, Any]) -> None:
    """Refuse run lengths that would unpack to more than any header has."""
    for value in row["hparams"].values():
        if isinstance(value, list) and sum(max(0, int(count)) for _, count in value) > _MAX_RUN:
            raise ValueError("an array in it is longer than any header's")
    for group in row["tensors"]:
        blocks = group[4] if len(group) > 4 else []
        if any(not 0 <= int(number) <= _MAX_RUN for number in blocks):
            raise ValueError("a block number in it is larger than any header's")


def _file(name: Any, size: Any) -> FileRef:
    if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
        raise ValueError("a name in it is none of a file")
    if not isinstance(size, int) or not 0 <= size < 1 << 56:
        raise ValueError(f"{name} has no size")
    return FileRef(url="", path=name, size=size)
