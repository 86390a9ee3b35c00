"""How are bytes of a stranger's URL read, without being led elsewhere?

Redirects are followed here, one by one: each target passes the source policy after its name was resolved,
the connection goes to the address that passed, and credentials stay with the host they were given for.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from berth.headers.address import SourcePolicy
from berth.headers.errors import HeaderError, HeaderReason

MAX_REDIRECTS = 8
TIMEOUT = httpx.Timeout(20.0, connect=10.0)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True)
class Answer:
    """An answer whose body was not read yet; ``headers`` joins those of every redirect, the first one first."""

    response: httpx.Response
    url: str
    headers: dict[str, str] = field(default_factory=dict)


class GuardedClient:
    """An HTTP client for strangers' URLs. Proxies of the environment are not used: they would resolve names unseen."""

    def __init__(self, policy: SourcePolicy, *, token: str | None = None, home: str = "") -> None:
        """``token`` is sent to ``home`` (an URL whose scheme, host and port count) and to nobody else."""
        self._policy = policy
        self._token = token
        self._home = _origin(httpx.URL(home)) if home else None
        self._client = httpx.Client(follow_redirects=False, timeout=TIMEOUT, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def open(
        self, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[Answer]:
        """The final answer to a request, its body unread. Raises HeaderError."""
        answer = self._follow(method, url, dict(headers or {}))
        try:
            yield answer
        except httpx.HTTPError as err:
            raise _failed(answer.url, err) from err
        finally:
            answer.response.close()

    def _follow(self, method: str, url: str, headers: dict[str, str]) -> Answer:
        seen: dict[str, str] = {}
        for _ in range(MAX_REDIRECTS + 1):
            response = self._send(method, httpx.URL(url), headers)
            for name, value in response.headers.items():
                seen.setdefault(name.lower(), value)
            target = response.headers.get("location")
            if response.status_code not in _REDIRECTS or target is None:
                _check_status(response, url)
                seen |= {
                    name.lower(): value
                    for name, value in response.headers.items()
                    if name.startswith("content-")
                }
                return Answer(response, url, seen)
            response.close()
            url = str(httpx.URL(url).join(target))
        raise HeaderError(
            HeaderReason.SOURCE_FAILED, f"{_shown(url)} redirects more than {MAX_REDIRECTS} times"
        )

    def _send(self, method: str, url: httpx.URL, headers: dict[str, str]) -> httpx.Response:
        scheme, host, port = _origin(url)
        addresses = self._policy.resolve(host, port)
        sent = {**headers, "host": url.netloc.decode("ascii"), "accept-encoding": "identity"}
        if self._token is not None and (scheme, host, port) == self._home:
            sent["authorization"] = f"Bearer {self._token}"
        for number, address in enumerate(addresses):
            request = self._client.build_request(
                method, url.copy_with(host=address), headers=sent, extensions={"sni_hostname": host}
            )
            try:
                return self._client.send(request, stream=True)
            except httpx.ConnectError as err:
                if number + 1 == len(addresses):
                    raise _failed(str(url), err) from err
            except httpx.HTTPError as err:
                raise _failed(str(url), err) from err
        raise AssertionError("resolve gives at least one address")


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    if url.scheme not in _PORTS or not url.host:
        raise HeaderError(
            HeaderReason.SOURCE_FORBIDDEN, f"{_shown(str(url))} is not an http or https URL"
        )
    return url.scheme, url.host.lower(), url.port or _PORTS[url.scheme]


def _check_status(response: httpx.Response, url: str) -> None:
    if response.status_code in {200, 206}:
        return
    response.close()
    reason = {
        401: HeaderReason.SOURCE_UNAUTHORIZED,
        403: HeaderReason.SOURCE_UNAUTHORIZED,
        404: HeaderReason.SOURCE_NOT_FOUND,
        410: HeaderReason.SOURCE_NOT_FOUND,
    }.get(response.status_code, HeaderReason.SOURCE_FAILED)
    hint = (
        " (a gated or private repository needs a token that may read it)"
        if reason == "SourceUnauthorized"
        else ""
    )
    raise HeaderError(reason, f"{_shown(url)} answered {response.status_code}{hint}")


def _failed(url: str, err: httpx.HTTPError) -> HeaderError:
    slow = isinstance(err, httpx.TimeoutException)
    reason = HeaderReason.SOURCE_TOO_SLOW if slow else HeaderReason.SOURCE_UNREACHABLE
    return HeaderError(
        reason, f"{_shown(url)} could not be read: {type(err).__name__} {err}".rstrip()
    )


def _shown(url: str) -> str:
    """The URL without its query, which may hold a signature."""
    return url.partition("?")[0][:300]
