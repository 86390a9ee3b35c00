"""Serve a folder as a hub: ``PYTHONPATH=tests python -m hub --root DIR``."""

import argparse
import asyncio
import signal
from pathlib import Path

from hub.server import Hub


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hub", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="ORG/NAME[@BRANCH]/…, files/…")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--cdn-host", help="default: where the client found the hub")
    parser.add_argument("--cdn-port", type=int, default=0)
    return parser.parse_args()


async def _main(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    hub = Hub(
        arguments.root,
        host=arguments.host,
        port=arguments.port,
        cdn_host=arguments.cdn_host,
        cdn_port=arguments.cdn_port,
    )
    async with hub:
        names = ", ".join(sorted(hub.repos)) or "no repository"
        print(f"hub: {hub.url} (CDN {hub.cdn_url}): {names}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_main(_arguments()))
