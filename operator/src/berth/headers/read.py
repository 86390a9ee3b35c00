"""What does a source hold? (The one entry that reads in this process.)"""

import hashlib
from collections.abc import Sequence

from berth.facts import Facts
from berth.headers.address import SourcePolicy
from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.gguf import MAGIC, parse_gguf
from berth.headers.gguf_facts import gguf_facts
from berth.headers.http import GuardedClient
from berth.headers.hub import (
    Listing,
    choose_files,
    gguf_shards,
    list_repository,
    read_whole,
    resolve_url,
)
from berth.headers.local import MAX_CONFIG, read_path
from berth.headers.remote import RemoteFile
from berth.headers.request import (
    FileRef,
    HeaderRequest,
    HeaderResult,
    HubSource,
    PathSource,
    UrlSource,
)
from berth.headers.safetensors import parse_json, parse_safetensors, safetensors_facts


def read_source(request: HeaderRequest) -> HeaderResult:
    """Facts, files and digest of a source. Raises HeaderError."""
    source = request.source
    if isinstance(source, PathSource):
        facts, files = read_path(source.path)
        return HeaderResult(facts, tuple(files), "", digest_of(files))
    home = request.endpoint if isinstance(source, HubSource) else source.uri
    client = GuardedClient(SourcePolicy(request.allow), token=request.token, home=home)
    try:
        return (
            _read_hub(client, request.endpoint, source)
            if isinstance(source, HubSource)
            else _read_url(client, source)
        )
    finally:
        client.close()


def digest_of(files: Sequence[FileRef]) -> str:
    """One digest for a set of files: of each its SHA-256, else its ETag, else its name, and its size."""
    sums = hashlib.sha256()
    for file in sorted(files, key=lambda one: one.path):
        sums.update(f"{file.sha256 or file.etag or file.path} {file.size}\n".encode())
    return f"sha256:{sums.hexdigest()}"


def _read_hub(client: GuardedClient, endpoint: str, source: HubSource) -> HeaderResult:
    listing = list_repository(client, endpoint, source)
    names = choose_files(listing.names, source.files, f"{source.repo}@{source.revision}")
    config = b"{}"
    if not names[0].endswith(".gguf") and "config.json" in listing.names:
        config = read_whole(client, resolve_url(endpoint, listing, "config.json"), MAX_CONFIG)
    urls = [(resolve_url(endpoint, listing, name), name) for name in names]
    facts, files = _read_files(client, urls, config)
    return HeaderResult(
        facts,
        (*files, *_companions(client, endpoint, listing, names)),
        listing.commit,
        digest_of(files),
    )


def _companions(
    client: GuardedClient, endpoint: str, listing: Listing, names: Sequence[str]
) -> list[FileRef]:
    """The small files that a safetensors model is served with: configuration, tokenizer, templates."""
    if names[0].endswith(".gguf"):
        return []
    wanted = (".json", ".jinja", ".model", ".txt", ".tiktoken")
    small = [name for name in listing.names if name.endswith(wanted) and "/" not in name][:32]
    return [_ref(client, resolve_url(endpoint, listing, name), name) for name in small]


def _ref(client: GuardedClient, url: str, name: str) -> FileRef:
    file = RemoteFile(client, url, name)
    file.close()
    return file.ref()


def _read_url(client: GuardedClient, source: UrlSource) -> HeaderResult:
    base, _, name = source.uri.partition("?")[0].rpartition("/")
    query = source.uri[len(base) + 1 + len(name) :]
    urls = [(f"{base}/{shard}{query}", shard) for shard in gguf_shards(name)]
    facts, files = _read_files(client, urls, b"{}")
    if source.sha256 is not None and len(files) == 1:
        files = [FileRef(files[0].url, files[0].path, files[0].size, source.sha256, files[0].etag)]
    return HeaderResult(facts, tuple(files), files[0].etag or "", digest_of(files))


def _read_files(
    client: GuardedClient, urls: Sequence[tuple[str, str]], config: bytes
) -> tuple[Facts, list[FileRef]]:
    files: list[FileRef] = []
    ggufs, tensors = [], []
    for url, name in urls:
        file = _open(client, url, name, alone=len(urls) == 1)
        try:
            if file.read(0, 4) == MAGIC or name.endswith(".gguf"):
                ggufs.append(parse_gguf(file.read, file.size))
            else:
                tensors.append(parse_safetensors(file.read, file.size))
        finally:
            file.close()
        files.append(file.ref())
    if ggufs and tensors:
        raise HeaderError(HeaderReason.AMBIGUOUS_FILE, "GGUF and safetensors files are mixed")
    facts = (
        gguf_facts(ggufs)
        if ggufs
        else safetensors_facts(tensors, parse_json(config, "config.json"))
    )
    return facts, files


def _open(client: GuardedClient, url: str, name: str, *, alone: bool) -> RemoteFile:
    try:
        return RemoteFile(client, url, name)
    except HeaderError as err:
        if err.reason is HeaderReason.SOURCE_NOT_FOUND and not alone:
            raise HeaderError(HeaderReason.MISSING_SHARD, f"the file {name} is missing") from err
        raise
