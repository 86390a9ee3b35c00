"""Which files does a runner need on this node, and who gives them? A small view of the store."""

import base64
import binascii
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from berth.agent.download import FileRef, Progress
from berth.agent.fetch_errors import FetchError
from berth.agent.loans import Loan, Loans
from berth.agent.sessions import SessionShelf
from berth.agent.shelf import Blob
from berth.agent.store import Store
from berth.api.meta import SecretKeyRef
from berth.api.runner import Runner
from berth.kube.client import ApiError
from berth.kube.refs import SECRETS, Ref
from berth.reasons import Reason


class Files(Protocol):
    """The files of one node: the real store, or a fake node's."""

    async def provide(self, runner: str, files: Sequence[FileRef], progress: Progress) -> Path:
        """Have them on the node, verified and linked for this runner. Raises FetchError."""
        ...

    def lend(self, loan: Loan) -> None:
        """Let the pod of a runner mount what is lent; before there is such a pod."""
        ...

    def sweep_sessions(self, models: Collection[str], now: float) -> None:
        """Remove saved sessions that are of none of these Models (uids), or too old, or too many."""
        ...

    async def trim(self) -> None:
        """Delete what nobody uses, least recently used first, down to the disk budget."""
        ...

    def release(self, runner: str) -> None:
        """The runner (by uid) is gone; its files may be deleted when room is needed."""
        ...

    def held(self) -> list[Blob]:
        """Every verified file."""
        ...

    def holders(self) -> list[str]:
        """Uids of the runners that something is kept for."""
        ...


class StoreFiles:
    """The node's content-addressed store."""

    def __init__(self, store: Store, sessions: SessionShelf, *, budget: int = 0) -> None:
        """``budget``: bytes of files that are kept beyond what is in use; 0: as many as fit."""
        self._store, self._sessions, self._budget = store, sessions, budget
        self._loans = Loans(store.shelf.root)

    async def provide(self, runner: str, files: Sequence[FileRef], progress: Progress) -> Path:
        return await self._store.provide(runner, files, progress)

    def lend(self, loan: Loan) -> None:
        if loan.sessions:
            self._sessions.open(loan.sessions)
        self._loans.note(loan)

    async def trim(self) -> None:
        if self._budget:
            await self._store.trim(self._budget)

    def sweep_sessions(self, models: Collection[str], now: float) -> None:
        self._sessions.sweep(models, self._loans.sessions(), now)

    def release(self, runner: str) -> None:
        # The note first: a folder without a note is found again by its name.
        self._loans.drop(runner)
        self._store.release(runner)

    def held(self) -> list[Blob]:
        return self._store.shelf.list_blobs()

    def holders(self) -> list[str]:
        return sorted({*self._store.shelf.list_runners(), *self._loans.runners()})


class SecretNotFoundError(FetchError):
    """The Secret that holds the source's token, or the key in it, is not there."""

    reason = Reason.SECRET_NOT_FOUND


class Reads(Protocol):
    """The part of ``kube.client.Kube`` that reading a Secret needs."""

    async def get(self, ref: Ref, name: str, namespace: str = "") -> dict[str, Any]: ...


def needs_fetch(runner: Runner) -> bool:
    """Files behind a mount or in an image are not the store's."""
    return bool(runner.spec.files) and runner.spec.mount is None


def file_refs(runner: Runner, token: str | None) -> list[FileRef]:
    """The files to fetch; the token goes to each URL's own origin alone."""
    credentials = {"Authorization": f"Bearer {token}"} if token else {}
    return [
        FileRef(
            name=file.name,
            url=file.url,
            size=file.size or None,
            sha256=file.sha256,
            etag=file.etag,
            credentials=credentials,
        )
        for file in runner.spec.files
    ]


async def read_token(kube: Reads, ref: SecretKeyRef | None, namespace: str) -> str | None:
    """The source's token. Raises SecretNotFoundError, or ApiUnreachableError to try again later."""
    if ref is None:
        return None
    try:
        secret = await kube.get(SECRETS, ref.name, namespace)
    except ApiError as err:
        if err.status not in (403, 404):
            raise
        raise SecretNotFoundError(
            f"the agent cannot read Secret {namespace}/{ref.name} ({err.reason}); "
            f"create it, and grant it with: kubectl berth grant-token"
        ) from err
    text = (secret.get("data") or {}).get(ref.key)
    if text is None:
        raise SecretNotFoundError(f"Secret {namespace}/{ref.name} has no key {ref.key}")
    try:
        return base64.b64decode(text).decode().strip()
    except (binascii.Error, UnicodeDecodeError) as err:
        raise SecretNotFoundError(
            f"key {ref.key} of Secret {namespace}/{ref.name} is not text"
        ) from err
