"""How are headers of files on this machine read?"""

from collections.abc import Callable
from pathlib import Path

from berth.facts import Facts
from berth.headers.errors import HeaderError, HeaderReason, invalid_header
from berth.headers.gguf import MAGIC, parse_gguf
from berth.headers.gguf_facts import gguf_facts
from berth.headers.hub import choose_files, gguf_shards
from berth.headers.request import FileRef
from berth.headers.safetensors import (
    check_shards,
    expected_shards,
    parse_json,
    parse_safetensors,
    safetensors_facts,
    shard_names,
)

MAX_CONFIG = 4 << 20
MAX_INDEX = 32 << 20


def read_path(path: str) -> tuple[Facts, list[FileRef]]:
    """Facts and files of a GGUF file, a split set, a safetensors file or a folder of one model.

    Raises HeaderError.
    """
    try:
        return _read(Path(path))
    except PermissionError as err:
        text = f"{err.filename or path} may not be read: files must be readable by any user"
        raise HeaderError(HeaderReason.SOURCE_UNAUTHORIZED, text) from err
    except OSError as err:
        raise HeaderError(HeaderReason.SOURCE_UNREACHABLE, f"{path}: {err.strerror}") from err


def _read(place: Path) -> tuple[Facts, list[FileRef]]:
    if place.is_dir():
        names = sorted(entry.name for entry in place.iterdir() if entry.is_file())
        files = [place / name for name in choose_files(names, (), str(place))]
    else:
        files = _set_of(place)
    for file in files:
        if not file.is_file():
            reason = HeaderReason.MISSING_SHARD if len(files) > 1 else HeaderReason.SOURCE_NOT_FOUND
            raise HeaderError(reason, f"the file {file} is missing")
    facts = _gguf(files) if _is_gguf(files[0]) else _safetensors(files)
    return facts, [
        FileRef(file.resolve().as_uri(), file.name, file.stat().st_size) for file in files
    ]


def _set_of(place: Path) -> list[Path]:
    names = gguf_shards(place.name) if place.name.endswith(".gguf") else expected_shards(place.name)
    return [place.with_name(name) for name in names]


def _is_gguf(file: Path) -> bool:
    with file.open("rb") as opened:
        return file.suffix == ".gguf" or opened.read(4) == MAGIC


def _gguf(files: list[Path]) -> Facts:
    return gguf_facts([parse_gguf(_reader(file), file.stat().st_size) for file in files])


def _safetensors(files: list[Path]) -> Facts:
    config = files[0].with_name("config.json")
    raw = config.read_bytes()[:MAX_CONFIG] if config.is_file() else b"{}"
    index = files[0].with_name("model.safetensors.index.json")
    if index.is_file() and files[0].name.startswith("model-"):
        if index.stat().st_size > MAX_INDEX:
            raise invalid_header(f"the index is longer than {MAX_INDEX} bytes")
        named = shard_names(parse_json(index.read_bytes(), "the index"))
        check_shards(named, [file.name for file in files])
    headers = [parse_safetensors(_reader(file), file.stat().st_size) for file in files]
    return safetensors_facts(headers, parse_json(raw, "config.json"))


def _reader(file: Path) -> Callable[[int, int], bytes]:
    def read(offset: int, length: int) -> bytes:
        with file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(length)

    return read
