"""How is one object read, listed, watched, created, applied or deleted?"""

import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp

from berth.kube.access import Access, PodAccess, in_pod
from berth.kube.refs import Ref

log = logging.getLogger(__name__)
Object = dict[str, Any]
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
_READ_TIMEOUT_S = 30.0
# The server ends a watch after this long; the connection is dropped a little later if it does not,
# so a silent break (no FIN ever comes) is noticed within five minutes at the very worst.
_WATCH_S = 240


class ApiError(Exception):
    """The API server said no. ``status`` is the HTTP code, ``reason`` its own word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def expired(self) -> bool:
        return self.status == 410


class ApiUnreachableError(Exception):
    """The API server did not answer."""


class Kube:
    """A connection to one API server. Objects go in and come out as dicts; callers parse them."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @classmethod
    async def connect(cls, *, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """By kubeconfig when one is named, by service account inside a pod, else the default one."""
        try:
            if kubeconfig is None and context is None and in_pod():
                return cls(PodAccess.here())
            from berth.kube.kubeconfig import KubeconfigAccess  # see `access`

            return cls(await KubeconfigAccess.read(kubeconfig=kubeconfig, context=context))
        except OSError as err:
            raise ApiUnreachableError(
                f"no usable kubeconfig ({err}); set KUBECONFIG or name one"
            ) from err

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._access.close()

    async def get(self, ref: Ref, name: str, namespace: str = "") -> Object:
        """One object; ApiError with ``not_found`` when there is none."""
        return await self._call("GET", ref.path(namespace, name))

    async def list_all(
        self, ref: Ref, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        """All objects with the list's resource version. Read in pages of 500."""
        items: list[Object] = []
        token = ""
        while True:
            query = _query(
                labelSelector=labels, fieldSelector=fields, limit="500", **{"continue": token}
            )
            page = await self._call("GET", ref.path(namespace) + query)
            items += page.get("items") or []
            token = page["metadata"].get("continue") or ""
            if not token:
                return items, page["metadata"]["resourceVersion"]

    async def watch(
        self, ref: Ref, version: str, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """Events after ``version`` until the server ends the stream; bookmarks are passed on.

        Raises ApiError with ``expired`` when the version is too old.
        """
        query = _query(
            labelSelector=labels,
            fieldSelector=fields,
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=str(_WATCH_S),
        )
        response = await self._send("GET", ref.path(namespace) + query, timeout=_WATCH_S + 60)
        try:
            async for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _api_error(event["object"].get("code", 500), event["object"])
                yield event["type"], event["object"]
        finally:
            response.close()

    async def create(self, ref: Ref, body: Object, namespace: str = "") -> Object:
        return await self._call("POST", ref.path(namespace), body=body)

    async def apply(
        self,
        ref: Ref,
        name: str,
        body: Object,
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Server-side apply as ``manager``, taking over fields that others own."""
        query = _query(fieldManager=manager, force="true")
        whole = {"apiVersion": ref.api_version, "kind": ref.kind, **body}
        whole["metadata"] = {"name": name, **body.get("metadata", {})}
        path = ref.path(namespace, name, subresource) + query
        return await self._call("PATCH", path, body=whole, content_type=APPLY)

    async def apply_status(
        self, ref: Ref, name: str, status: Mapping[str, Any], *, manager: str, namespace: str = ""
    ) -> Object:
        """Server-side apply of ``status`` alone; what this manager leaves out, it gives up."""
        return await self.apply(
            ref,
            name,
            {"status": dict(status)},
            manager=manager,
            namespace=namespace,
            subresource="status",
        )

    async def patch_json(
        self,
        ref: Ref,
        name: str,
        operations: list[Object],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """JSON patch; a leading ``test`` operation makes it conditional (ApiError 422 when it fails)."""
        path = ref.path(namespace, name, subresource)
        return await self._call("PATCH", path, body=operations, content_type=JSON_PATCH)

    async def patch_merge(
        self, ref: Ref, name: str, body: Object, *, namespace: str = ""
    ) -> Object:
        """Merge patch of metadata and spec (a person's or the CLI's edit). Never of a status."""
        path = ref.path(namespace, name)
        return await self._call("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def delete(
        self,
        ref: Ref,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_s: int | None = None,
        propagation: str = "Background",
    ) -> bool:
        """Delete one object, only if it still is the one with ``uid``. False: it was gone already."""
        body: Object = {"propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", ref.path(namespace, name), body=body)
        except ApiError as err:
            if err.not_found or err.conflict:
                return False
            raise
        return True

    async def raw(self, path: str) -> str:
        """The text at a path such as ``/readyz`` or ``/version``."""
        response = await self._send("GET", path, timeout=_READ_TIMEOUT_S)
        return await response.text()

    async def _call(
        self, method: str, path: str, *, body: Any = None, content_type: str = "application/json"
    ) -> Object:
        response = await self._send(
            method, path, body=body, content_type=content_type, timeout=_READ_TIMEOUT_S
        )
        answer: Object = await response.json()
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        *,
        timeout: float,
        body: Any = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            response = await self._access.send(
                method, path, headers=headers, body=body, timeout=timeout
            )
            for warning in response.headers.getall("Warning", ()):
                log.warning("the API server warns of %s %s: %s", method, path, warning[:500])
            if response.status >= 400:
                raise _api_error(response.status, await _json_or_text(response))
        except (TimeoutError, aiohttp.ClientError, OSError) as err:
            raise ApiUnreachableError(f"{method} {path}: {err or type(err).__name__}") from err
        return response


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for line in response.content:
            if line.strip():
                yield line
    except (TimeoutError, aiohttp.ClientError, OSError) as err:
        raise ApiUnreachableError(f"watch broke off: {err or type(err).__name__}") from err


async def _json_or_text(response: aiohttp.ClientResponse) -> Object:
    text = await response.text()
    try:
        body = json.loads(text)
    except ValueError:
        return {"message": text[:512]}
    return body if isinstance(body, dict) else {"message": text[:512]}


def _api_error(status: int, body: Object) -> ApiError:
    return ApiError(status, str(body.get("reason") or ""), str(body.get("message") or ""))


def _query(**parameters: str) -> str:
    present = {key: value for key, value in parameters.items() if value}
    return f"?{urlencode(present)}" if present else ""
