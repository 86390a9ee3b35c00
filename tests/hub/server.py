"""How does the hub answer? The routes of the Hugging Face hub that clients of models use.

Followed: the hub's OpenAPI page and what ``huggingface_hub`` sends and reads (``X-Repo-Commit``,
``X-Linked-Etag``, ``X-Linked-Size``, ``X-Error-Code``, a 302 to the CDN for LFS files).
"""

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web

from hub.faults import Faults
from hub.repos import Blob, Repo, read_root
from hub.serve import send_file


@dataclass(frozen=True)
class Asked:
    """One request as it arrived; ``where`` is ``hub`` or ``cdn``."""

    where: str
    method: str
    path: str
    range: str | None
    authorization: str | None


class Hub:
    """A hub on one address and its CDN on another, so that credentials have a host to stay on."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        cdn_host: str | None = "127.0.0.2",
        cdn_port: int = 0,
    ) -> None:
        self.repos: dict[str, Repo] = read_root(root) if root else {}
        self.plain: dict[str, bytes | Path] = {}
        self.faults = Faults()
        self.asked: list[Asked] = []
        self._root, self._host, self._port = root, host, port
        self._cdn_host, self._cdn_port = cdn_host, cdn_port
        self._blobs: dict[str, Blob] = {}
        self._runners: list[web.AppRunner] = []

    # -- content -----------------------------------------------------------------------------

    def commit(
        self,
        repo: str,
        files: Mapping[str, bytes | Path],
        *,
        branch: str = "main",
        gated: bool = False,
        tokens: set[str] | None = None,
    ) -> str:
        """Make the files the content of a branch; returns the commit. Keeps gating once set."""
        entry = self.repos.setdefault(repo, Repo(repo))
        entry.gated = entry.gated or gated
        entry.tokens |= tokens or set()
        return entry.commit(files, branch)

    def resolve_url(self, repo: str, name: str, revision: str = "main") -> str:
        """The URL from which the hub's clients download a file."""
        return f"{self.url}/{repo}/resolve/{revision}/{name}"

    def plain_url(self, name: str) -> str:
        """The URL of a file in ``plain``, or below ``ROOT/files``."""
        return f"{self.url}/files/{name}"

    def blob(self, repo: str, name: str, revision: str = "main") -> Blob:
        """A file as it is stored, for its true size and digest."""
        entry = self.repos[repo]
        return entry.commits[entry.resolve(revision) or ""][name]

    # -- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> "Hub":
        self.port = await self._listen(self._hub_app(), self._host, self._port)
        cdn_host = self._cdn_host or self._host
        self.cdn_port = await self._listen(self._cdn_app(), cdn_host, self._cdn_port)
        self.url = f"http://{self._host}:{self.port}"
        self.cdn_url = f"http://{cdn_host}:{self.cdn_port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for runner in self._runners:
            for handler in list(runner.server.connections) if runner.server else []:
                if handler.transport:
                    handler.transport.abort()
            await runner.cleanup()

    async def _listen(self, app: web.Application, host: str, port: int) -> int:
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01
        )
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        self._runners.append(runner)
        return runner.addresses[0][1]

    def _hub_app(self) -> web.Application:
        app = web.Application(middlewares=[self._noting("hub")])
        repo = "{repo:[^/]+/[^/]+}"
        app.add_routes(
            [
                web.post("/_hub/faults", self._set_faults),
                web.get("/api/whoami-v2", self._whoami),
                web.get(f"/api/models/{repo}", self._info),
                web.get(f"/api/models/{repo}/revision/{{revision:.+}}", self._info),
                web.get(f"/api/models/{repo}/refs", self._refs),
                web.get(f"/api/models/{repo}/tree/{{revision}}", self._tree),
                web.get(f"/api/models/{repo}/tree/{{revision}}/{{folder:.+}}", self._tree),
                web.post(f"/api/models/{repo}/paths-info/{{revision}}", self._paths_info),
                web.get("/files/{name:.+}", self._plain),
                web.get(f"/{repo}/resolve/{{revision}}/{{name:.+}}", self._resolve),
            ]
        )
        return app

    def _cdn_app(self) -> web.Application:
        app = web.Application(middlewares=[self._noting("cdn")])
        app.add_routes([web.get("/cdn/{sha}", self._cdn)])
        return app

    def _noting(self, where: str) -> Any:
        @web.middleware
        async def note(request: web.Request, handler: Callable[..., Any]) -> Any:
            head = request.headers
            asked = Asked(
                where, request.method, request.path, head.get("Range"), head.get("Authorization")
            )
            self.asked.append(asked)
            return await handler(request)

        return note

    # -- answers -----------------------------------------------------------------------------

    async def _set_faults(self, request: web.Request) -> web.Response:
        self.faults.set(await request.json())
        return web.json_response({})

    async def _whoami(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "tester", "type": "user", "auth": {}})

    async def _info(self, request: web.Request) -> web.Response:
        repo, sha, files = self._find(request)
        with_blobs = request.query.get("blobs") in ("true", "True", "1")
        siblings = [_sibling(blob, with_blobs) for blob in files.values()]
        return web.json_response(
            {
                "_id": hashlib.sha1(repo.name.encode()).hexdigest()[:24],
                "id": repo.name,
                "modelId": repo.name,
                "author": repo.name.split("/")[0],
                "sha": sha,
                "private": False,
                "gated": "manual" if repo.gated else False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": ["gguf"],
                "siblings": siblings,
            }
        )

    async def _refs(self, request: web.Request) -> web.Response:
        repo, _, _ = self._find(request)
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha}
            for name, sha in repo.branches.items()
        ]
        return web.json_response({"branches": branches, "tags": [], "converts": []})

    async def _tree(self, request: web.Request) -> web.Response:
        _, _, files = self._find(request)
        folder = request.match_info.get("folder", "").strip("/")
        prefix = f"{folder}/" if folder else ""
        inside = [blob for name, blob in files.items() if name.startswith(prefix)]
        if folder and not inside:
            raise _refusal(404, "EntryNotFound", f"{folder} does not exist")
        if request.query.get("recursive") in ("true", "True", "1"):
            return web.json_response([_entry(blob) for blob in inside])
        here = [blob for blob in inside if "/" not in blob.name[len(prefix) :]]
        names = {prefix + b.name[len(prefix) :].split("/")[0] for b in inside if b not in here}
        folders = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
            for name in sorted(names)
        ]
        return web.json_response(folders + [_entry(blob) for blob in here])

    async def _paths_info(self, request: web.Request) -> web.Response:
        _, _, files = self._find(request)
        if request.content_type == "application/json":
            asked = (await request.json()).get("paths", [])
        else:
            asked = (await request.post()).getall("paths", [])
        paths = [asked] if isinstance(asked, str) else asked
        return web.json_response([_entry(files[path]) for path in paths if path in files])

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        _, sha, files = self._find(request)
        blob = files.get(request.match_info["name"])
        if blob is None:
            raise _refusal(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": sha})
        if not blob.is_lfs:
            headers = {"X-Repo-Commit": sha, "ETag": f'"{blob.oid}"'}
            return await send_file(request, blob, self.faults, headers)
        if self.faults.statuses:
            return web.Response(status=self.faults.statuses.pop(0))
        self._blobs[blob.sha256] = blob
        headers = {
            "X-Repo-Commit": sha,
            "X-Linked-Etag": f'"{blob.sha256}"',
            "X-Linked-Size": str(blob.size),
            "ETag": f'"{blob.oid}"',
            "Accept-Ranges": "bytes",
            "Location": f"{self._cdn_of(request)}/cdn/{blob.sha256}?signature=of-the-hub",
        }
        return web.Response(status=302, headers=headers)

    def _cdn_of(self, request: web.Request) -> str:
        # Without a host of its own the CDN is found where the client found the hub.
        host = self._cdn_host or request.url.host
        return f"http://{host}:{self.cdn_port}"

    async def _cdn(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization"):
            # As S3 does: a signed URL and a header are two authentications, and one too many.
            return web.Response(status=400, text="Only one auth mechanism allowed")
        blob = self._blobs.get(request.match_info["sha"])
        if blob is None or request.query.get("signature") != "of-the-hub":
            return web.Response(status=403)
        return await send_file(request, blob, self.faults, {"ETag": f'"{blob.sha256}"'})

    async def _plain(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        content = self.plain.get(name) or self._below_root(name)
        if content is None:
            return web.Response(status=404)
        blob = Blob(name, content)
        etag = f'"{blob.size:x}-{_version(content)}"'
        return await send_file(request, blob, self.faults, {"ETag": etag})

    def _below_root(self, name: str) -> Path | None:
        if self._root is None:
            return None
        folder = (self._root / "files").resolve()
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder) and path.is_file() else None

    def _repo(self, name: str) -> Repo | None:
        """A repository that was written after the start is found when it is first asked for."""
        if name not in self.repos and self._root is not None:
            self.repos = read_root(self._root) | self.repos
        return self.repos.get(name)

    def _find(self, request: web.Request) -> tuple[Repo, str, dict[str, Blob]]:
        repo = self._repo(request.match_info["repo"])
        if repo is None:
            # The hub tells a stranger 401, so that private names cannot be guessed.
            raise _refusal(401, "RepoNotFound", "Invalid username or password.")
        is_file = request.path.startswith(f"/{repo.name}/")
        if repo.gated and is_file:
            _check_token(request, repo)
        revision = request.match_info.get("revision", "main")
        sha = repo.resolve(revision)
        if sha is None:
            raise _refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo, sha, repo.commits[sha]


def _check_token(request: web.Request, repo: Repo) -> None:
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not token:
        text = f"Access to model {repo.name} is restricted. Please log in."
        raise _refusal(401, "GatedRepo", text)
    if token not in repo.tokens:
        text = f"Access to model {repo.name} is restricted: you are not in the authorized list."
        raise _refusal(403, "GatedRepo", text)


def _refusal(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> web.HTTPException:
    kinds = {401: web.HTTPUnauthorized, 403: web.HTTPForbidden, 404: web.HTTPNotFound}
    head = {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})}
    return kinds[status](headers=head, text=message)


def _sibling(blob: Blob, with_blobs: bool) -> dict[str, Any]:
    if not with_blobs:
        return {"rfilename": blob.name}
    entry = {"rfilename": blob.name, "size": blob.size, "blobId": blob.oid}
    lfs = {"sha256": blob.sha256, "size": blob.size, "pointerSize": 134}
    return {**entry, "lfs": lfs} if blob.is_lfs else entry


def _entry(blob: Blob) -> dict[str, Any]:
    entry = {"type": "file", "oid": blob.oid, "size": blob.size, "path": blob.name}
    lfs = {"oid": blob.sha256, "size": blob.size, "pointerSize": 134}
    return {**entry, "lfs": lfs} if blob.is_lfs else entry


def _version(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha1(content).hexdigest()[:16]
    with contextlib.suppress(OSError):
        return f"{content.stat().st_mtime_ns:x}"
    return "0"
