"""How does a program in a pod reach the API server? By its service account, with nothing but aiohttp.

The `kubernetes` package, which reads kubeconfigs, brings its generated client and its ways to
log in along: 12 MB and half a second in every pod that needs none of them. It is imported where a kubeconfig is.
"""

import json
import os
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import aiohttp

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REREAD_S = 60.0
"""The kubelet renews tokens long before they end."""
CONNECTIONS = 64


class Access(Protocol):
    """A way to the API server."""

    async def send(
        self, method: str, path: str, *, headers: dict[str, str], body: Any, timeout: float
    ) -> aiohttp.ClientResponse:
        """One request, its answer's head read. Raises TimeoutError, OSError, aiohttp.ClientError."""

    async def close(self) -> None:
        """End all connections."""


def in_pod() -> bool:
    """There is a service account to be."""
    return (SERVICE_ACCOUNT / "token").exists()


class PodAccess:
    """As the pod's service account. Needs a running event loop."""

    def __init__(self, server: str, account: Path) -> None:
        self._server = server
        self._token_file = account / "token"
        self._token = ""
        self._read_at = -REREAD_S
        trust = ssl.create_default_context(cafile=str(account / "ca.crt"))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=trust),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    @classmethod
    def here(
        cls, environment: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT
    ) -> Self:
        """The cluster that this pod runs in. Raises OSError when it is not told where that is."""
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        port = environment.get("KUBERNETES_SERVICE_PORT", "")
        if not host or not port:
            raise OSError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", account)

    async def send(
        self, method: str, path: str, *, headers: dict[str, str], body: Any, timeout: float
    ) -> aiohttp.ClientResponse:
        response = await self._session.request(
            method,
            self._server + path,
            headers={**headers, "Authorization": f"Bearer {self._current_token()}"},
            data=None if body is None else json.dumps(body).encode(),
            timeout=aiohttp.ClientTimeout(total=timeout),
        )
        if response.status == 401:
            self._read_at = -REREAD_S
        return response

    async def close(self) -> None:
        await self._session.close()

    def _current_token(self) -> str:
        now = time.monotonic()
        if now - self._read_at >= REREAD_S:
            self._token, self._read_at = self._token_file.read_text().strip(), now
        return self._token
