"""How is the gateway put together, started and ended?"""

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
import yaml

from berth.gateway.accounting import Ledger, LineWriter
from berth.gateway.alarm import Alarm, pusher
from berth.gateway.body import Store
from berth.gateway.catalog import Catalog
from berth.gateway.daybook import Daybook
from berth.gateway.demand import BEAT_S, DemandBook, KubeWriter, Writer
from berth.gateway.desk import Desk
from berth.gateway.inbound import Listener
from berth.gateway.keys import Keys
from berth.gateway.metrics import exposition
from berth.gateway.proxy import Limits, Proxy
from berth.gateway.server import Front
from berth.gateway.upstream import Pool
from berth.gateway.watch import Feed, fill_from
from berth.kube.client import Kube
from berth.settings import Settings

log = logging.getLogger(__name__)
BACKLOG = 1024


class Nowhere:
    """Where demand goes when there is no cluster."""

    async def write(self, key: str, manager: str, status: dict[str, Any]) -> None:
        return None


@dataclass
class Gateway:
    """All parts of one gateway, wired."""

    catalog: Catalog
    demand: DemandBook
    desk: Desk
    proxy: Proxy
    front: Front
    ledger: Ledger
    stopping: asyncio.Event
    alarm: Alarm | None = None


def build(settings: Settings, catalog: Catalog, writer: Writer, ledger: Ledger) -> Gateway:
    """A gateway over a catalogue, before it listens. Needs a running event loop."""
    demand = DemandBook(writer, settings.text("POD_NAME") or socket.gethostname())
    desk = Desk(catalog, demand, limit=settings.number("QUEUE_LIMIT"))
    store = Store(
        limit=settings.bytes("BODY_LIMIT"),
        budget=settings.bytes("BODY_MEMORY"),
        folder=settings.text("SPOOL_DIR") or None,
    )
    keys = settings.text("KEYS_FILE")
    stopping = asyncio.Event()
    proxy = Proxy(
        catalog=catalog,
        desk=desk,
        pool=Pool(),
        store=store,
        keys=Keys(Path(keys) if keys else None),
        ledger=ledger,
        limits=Limits(
            stream_wait_s=settings.seconds("QUEUE_TIMEOUT"),
            whole_wait_s=settings.seconds("NONSTREAM_WAIT"),
            keepalive_s=settings.seconds("KEEPALIVE"),
        ),
        stopping=stopping,
    )
    catalog.changed.append(lambda key: None if catalog.get(key) else ledger.forget(key))
    front = Front(proxy, exposition(ledger, desk, store))
    url, folder = settings.text("PUSH_URL"), settings.text("USAGE_DIR")
    alarm = Alarm(pusher(url), settings.seconds("STALL_AFTER")) if url else None
    if folder:
        ledger.daybook = Daybook(Path(folder), settings.text("POD_NAME") or socket.gethostname())
    return Gateway(catalog, demand, desk, proxy, front, ledger, stopping, alarm)


async def tick(gateway: Gateway) -> None:
    """What recurs: beats of those who wait, marks of use while answers run."""
    daybook = gateway.ledger.daybook
    while True:
        await asyncio.sleep(BEAT_S)
        gateway.demand.beat()
        gateway.desk.touch_running()
        if gateway.alarm is not None:
            gateway.alarm.look(gateway.proxy.live, asyncio.get_running_loop().time())
        if daybook is not None:
            _save(daybook)


def _save(daybook: Daybook) -> None:
    try:
        daybook.save()
    except OSError as err:
        log.warning("usage is not on disk yet: %s", err)


@contextlib.asynccontextmanager
async def listening(gateway: Gateway, host: str, port: int) -> AsyncIterator[int]:
    """Accept connections while the block lasts; the value is the port."""
    listener = Listener(gateway.front.handle)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(listener, host, port, backlog=BACKLOG)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await listener.close(1.0)
        gateway.proxy.pool.close()
        gateway.ledger.flush()
        if gateway.ledger.daybook is not None:
            _save(gateway.ledger.daybook)


async def drain(gateway: Gateway, *, grace_s: float, limit_s: float) -> None:
    """Stop without losing anything.

    1. Not ready any more; for ``grace_s`` what still arrives is served, until every endpoint list
       has forgotten this gateway.
    2. Then new requests are refused, and what is in flight ends, for ``limit_s`` at most.
    """
    gateway.stopping.set()
    log.info("stopping: %d requests in flight", gateway.ledger.in_flight)
    await asyncio.sleep(grace_s)
    gateway.front.is_refusing = True
    try:
        await asyncio.wait_for(gateway.ledger.idle.wait(), limit_s)
    except TimeoutError:
        log.warning("stopping with %d requests cut", gateway.ledger.in_flight)
    await gateway.demand.withdraw()


def settle_garbage() -> None:
    """Keep the collector away from what lives for ever.

    A full collection over all imported modules costs milliseconds, in the middle of somebody's
    stream. Requests free themselves by reference counts; what cycles they leave is found later.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


async def serve(settings: Settings, static: Path | None) -> None:
    """One gateway from start to end."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    catalog = Catalog()
    clock = asyncio.get_running_loop().time
    async with contextlib.AsyncExitStack() as stack:
        work: list[Coroutine[Any, Any, None]] = []
        writer: Writer = Nowhere()
        if static is not None:
            fill_from(yaml.safe_load(static.read_text()), catalog)  # noqa: ASYNC240 - once, at start
        else:
            kube = await stack.enter_async_context(await Kube.connect())
            file = settings.text("CATALOG_FILE")
            feed = Feed(
                kube,
                catalog,
                default_idle_s=settings.seconds("IDLE_TIMEOUT"),
                file=Path(file) if file else None,
            )
            writer = KubeWriter(kube)
            work.append(feed.run())
        lines = LineWriter(sys.stdout.buffer)
        stack.callback(lines.close)
        gateway = build(settings, catalog, writer, Ledger(write=lines.write, clock=clock))
        work += [tick(gateway), gateway.proxy.keys.read_for_ever()]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(item) for item in work]
            async with listening(gateway, settings.text("HOST"), settings.number("PORT")) as port:
                log.info("gateway listens on port %d", port)
                settle_garbage()
                await stop.wait()
                await drain(
                    gateway,
                    grace_s=settings.seconds("GATEWAY_GRACE"),
                    limit_s=settings.seconds("GATEWAY_DRAIN"),
                )
            for task in tasks:
                task.cancel()


def run(static: Path | None = None) -> None:
    """Entry point of ``berth gateway``; ``static`` serves a file's models without a cluster."""
    settings = Settings()
    logging.basicConfig(
        level=settings.text("LOG_LEVEL").upper(), format="%(levelname)s: %(name)s: %(message)s"
    )
    uvloop.run(serve(settings, static))


def main() -> None:
    """``python -m berth.gateway.main --static FILE``."""
    parser = argparse.ArgumentParser(prog="berth gateway")
    parser.add_argument("--static", type=Path, help="YAML file of models and their addresses")
    run(parser.parse_args().static)


if __name__ == "__main__":
    main()
