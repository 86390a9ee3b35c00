"""Is the agent alive and ready? ``/healthz``, ``/readyz`` and ``/metrics`` on one port."""

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


@contextlib.asynccontextmanager
async def serving(
    port: int, *, registry: CollectorRegistry, ready: Callable[[], str], host: str = "0.0.0.0"
) -> AsyncIterator[int]:
    """Answers while the block lasts; gives the port. ``ready`` says what is missing, or nothing."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = ready()
        return web.Response(text=f"{missing or 'ok'}\n", status=503 if missing else 200)

    async def metrics(_: web.Request) -> web.Response:
        body = generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
