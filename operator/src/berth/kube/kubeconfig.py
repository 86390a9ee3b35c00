"""How does a program outside a cluster reach the API server? By a kubeconfig, as kubectl does."""

from typing import Any, Self
from urllib.request import getproxies

import aiohttp
import yaml
from kubernetes.aio import client, config

from berth.kube.access import CONNECTIONS


class KubeconfigAccess:
    """Any way to log in that the `kubernetes` package knows."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._server = str(api.configuration.host).rstrip("/")

    @classmethod
    async def read(cls, *, kubeconfig: str | None, context: str | None) -> Self:
        """The named one, else the default one. Raises OSError for one that cannot be used."""
        settings = client.Configuration()
        try:
            await config.load_kube_config(
                config_file=kubeconfig, context=context, client_configuration=settings
            )
        except (config.ConfigException, yaml.YAMLError) as err:
            raise OSError(str(err)) from err
        settings.connection_pool_maxsize = CONNECTIONS
        settings.retries = False
        # Else two threads are asked for a proxy and for ~/.netrc before every request.
        settings.client_session_kwargs = {"trust_env": bool(getproxies())}
        return cls(client.ApiClient(settings))

    async def send(
        self, method: str, path: str, *, headers: dict[str, str], body: Any, timeout: float
    ) -> aiohttp.ClientResponse:
        whole = dict(headers)
        await self._api.update_params_for_auth(whole, [], ["BearerToken"], path, method, body)
        wrapped = await self._api.rest_client.request(
            method, self._server + path, headers=whole, body=body, _request_timeout=timeout
        )
        response: aiohttp.ClientResponse = wrapped.response
        return response

    async def close(self) -> None:
        await self._api.close()
