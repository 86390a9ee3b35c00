"""How is a URL asked, with redirects, without a credential reaching a host that it is not for?

The asynchronous counterpart of `berth.headers.http`, under the same `SourcePolicy`: every hop is
resolved and checked, and the connection goes to the address that was checked.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping

import certifi
import httpx

from berth.agent.answer import Answer
from berth.agent.fetch_errors import SourceForbiddenError, SourceUnreachableError
from berth.headers.address import SourcePolicy
from berth.headers.errors import HeaderError, HeaderReason

MAX_REDIRECTS = 8
TIMEOUTS = httpx.Timeout(connect=15.0, read=30.0, write=30.0, pool=None)
"""Seconds. A source that sends nothing for the read timeout is asked again from where it stopped."""

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Courier:
    """Asks sources under a policy. Proxies of the environment are not used: they resolve unseen."""

    def __init__(self, policy: SourcePolicy, *, timeouts: httpx.Timeout = TIMEOUTS) -> None:
        self._policy = policy
        # No connection is kept: the pool knows connections by address, and one that was proved to
        # be host A must not carry a request for host B at the same address.
        self._client = httpx.AsyncClient(
            follow_redirects=False,
            timeout=timeouts,
            trust_env=False,
            verify=_trust(),
            limits=httpx.Limits(max_keepalive_connections=0, max_connections=None),
        )

    async def close(self) -> None:
        """Close what is open."""
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def ask(
        self, url: str, headers: Mapping[str, str], credentials: Mapping[str, str]
    ) -> AsyncIterator[tuple[Answer, AsyncIterator[bytes]]]:
        """The last answer and its raw body. ``credentials`` go to the first URL's origin only.

        The answer also has the ``x-…`` headers of the redirects, the first one's first: the hub
        tells digest, size and commit there. Raises SourceForbiddenError and, when the source cannot be reached or breaks
        off, SourceUnreachableError.
        """
        here, told = _url(url), dict[str, str]()
        first = here
        try:
            for _ in range(MAX_REDIRECTS + 1):
                sent = {**headers, **(credentials if _origin(here) == _origin(first) else {})}
                response = await self._send(here, sent)
                async with contextlib.aclosing(response):
                    found = {name.lower(): value for name, value in response.headers.items()}
                    target = found.get("location")
                    if response.status_code not in _REDIRECTS or target is None:
                        yield Answer(response.status_code, found | told), response.aiter_raw()
                        return
                    told = {n: text for n, text in found.items() if n.startswith("x-")} | told
                    here = _next(here, target)
        except httpx.HTTPError as err:
            text = f"{here.host}: {type(err).__name__} {err}".rstrip()
            raise SourceUnreachableError(text) from err
        raise SourceUnreachableError(f"{first.host}: more than {MAX_REDIRECTS} redirects")

    async def _send(self, url: httpx.URL, headers: Mapping[str, str]) -> httpx.Response:
        _, host, port = _origin(url)
        for address in (addresses := await self._resolve(host, port)):
            request = self._client.build_request(
                "GET",
                url.copy_with(host=address),
                headers={**headers, "Host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": host},
            )
            try:
                return await self._client.send(request, stream=True)
            except httpx.ConnectError:
                if address == addresses[-1]:
                    raise
        raise SourceUnreachableError(f"{host} has no address")

    async def _resolve(self, host: str, port: int) -> list[str]:
        try:
            return await asyncio.to_thread(self._policy.resolve, host, port)
        except HeaderError as err:
            if err.reason == HeaderReason.SOURCE_FORBIDDEN:
                raise SourceForbiddenError(err.message) from err
            raise SourceUnreachableError(err.message) from err


def _trust() -> ssl.SSLContext:
    """The public authorities, and those that the image or SSL_CERT_FILE adds."""
    context = ssl.create_default_context(cafile=certifi.where())
    context.load_default_certs()
    return context


def _url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
        _origin(url)
    except httpx.InvalidURL as err:
        raise SourceForbiddenError(f"this is not a URL: {err}") from err
    if url.userinfo:
        raise SourceForbiddenError(f"{url.host}: a URL must not carry credentials")
    return url


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    if url.scheme not in _PORTS or not url.host:
        raise SourceForbiddenError(f"{url.scheme}://{url.host} is not an http or https URL")
    return url.scheme, url.host.lower(), url.port or _PORTS[url.scheme]


def _next(here: httpx.URL, location: str) -> httpx.URL:
    there = _url(str(here.join(location)))
    if here.scheme == "https" and there.scheme != "https":
        raise SourceForbiddenError(f"{here.host} redirects from https to {there.scheme}")
    return there
