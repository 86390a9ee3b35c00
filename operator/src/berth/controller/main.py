"""How does the controller start, lead and end?"""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any

from berth.controller.apply import Hands
from berth.controller.configured import frame_of, holder_settings, pod_settings, price_settings
from berth.controller.health import Pulse, serve_health
from berth.controller.history import History
from berth.controller.launch import Stamp
from berth.controller.leadership import Leadership, LeaseTerms, own_identity
from berth.controller.loop import Bell, Passes
from berth.controller.metrics import Metrics
from berth.controller.observe import Frame, Remembered
from berth.controller.outbox import Outbox
from berth.controller.prices import Deskwork, PriceDesk, SourceSettings
from berth.controller.store import Store
from berth.controller.sweep import restamp, sweep
from berth.controller.telling import Teller
from berth.controller.watch import Watches, WatchHealth
from berth.headers.pool import HeaderPool
from berth.kube.client import ApiError, ApiUnreachableError, Kube
from berth.settings import Settings

log = logging.getLogger(__name__)


def run() -> None:
    """The program `berth controller`: leads, or waits until it may."""
    settings = Settings()
    _log_to_stderr(settings.text("LOG_LEVEL"))
    try:
        sys.exit(asyncio.run(Controller(settings).main()))
    except ApiError as err:
        log.error("%s", explain(err))
    except ApiUnreachableError as err:
        log.error("the API server went away, starting anew: %s", err)
    sys.exit(1)


def explain(err: ApiError) -> str:
    """What somebody has to do about an answer that the controller cannot live with."""
    if err.status == 403:
        return f"a right is missing, see the chart's rbac.yaml: {err}"
    if err.not_found:
        return f"a kind is not there, apply the CRDs first: {err}"
    return f"the API server refused what the controller needs: {err}"


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(levelname)s: %(name)s: %(message)s", stream=sys.stderr
    )
    # kopf tells of every object that it hands over.
    logging.getLogger("kopf").setLevel(logging.WARNING)


class Controller:
    """One controller process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._pulse = Pulse(turned_at=time.monotonic())
        self._stop = asyncio.Event()
        self._watch: WatchHealth | None = None

    async def main(self) -> int:
        """Wait for leadership, lead until a signal, give the Lease up. The exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        port = self._settings.number("HEALTH_PORT")
        server = serve_health(port, self._pulse, self._metrics.registry, time.monotonic)
        beat = asyncio.create_task(self._beat())
        leadership = self._leadership()
        try:
            async with await self._connect() as kube:
                self._pulse.connected = True
                leadership.start()
                epoch = await self._first(leadership.acquired())
                if epoch is not None:
                    await self._lead(kube, leadership, epoch)
        finally:
            beat.cancel()
            await asyncio.to_thread(leadership.release)
            server.shutdown()
        return 0

    def _leadership(self) -> Leadership:
        terms = LeaseTerms(
            namespace=self._settings.text("NAMESPACE"),
            duration_s=self._settings.seconds("LEASE_DURATION"),
        )
        return Leadership(Kube.connect, terms, own_identity(self._settings.text("POD_NAME")))

    async def _connect(self) -> Kube:
        """A connection that has answered once."""
        kube = await Kube.connect()
        while not self._stop.is_set():
            try:
                await kube.raw("/version")
                break
            except (ApiError, ApiUnreachableError) as err:
                log.warning("waiting for the API server: %s", err)
                await asyncio.sleep(1)
        return kube

    async def _first(self, wanted: Coroutine[Any, Any, int]) -> int | None:
        """What is wanted, or None when a signal came first."""
        task = asyncio.create_task(wanted)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            return task.result()
        task.cancel()
        return None

    async def _lead(self, kube: Kube, leadership: Leadership, epoch: int) -> None:
        self._metrics.leads(epoch)
        self._pulse.leads = True
        bell = Bell(self._settings.seconds("PASS_DEBOUNCE"))
        store = Store(bell.ring)
        health = WatchHealth(time.time())
        self._watch = health
        watches = Watches(store, health, kube, self._settings.text("NAMESPACE"))
        hands = self._hands(kube, store, leadership, bell, epoch)
        await watches.list_all()
        self._pulse.listed = True
        await sweep(hands)
        await restamp(hands)
        passes = Passes(
            hands=hands,
            desk=self._desk(kube, store, bell),
            remembered=Remembered(History()),
            frame=lambda now: self._frame(epoch, health, now),
            metrics=self._metrics,
            bell=bell,
        )
        bell.ring()
        await self._until_stopped(watches, passes)

    async def _until_stopped(self, watches: Watches, passes: Passes) -> None:
        """Run until a signal; anything that ends by itself ends the process, to start anew."""
        works: set[asyncio.Task[Any]] = {
            asyncio.create_task(watches.run(), name="watches"),
            asyncio.create_task(watches.resync(), name="resync"),
            asyncio.create_task(passes.run(), name="passes"),
        }
        stopped: asyncio.Task[Any] = asyncio.create_task(self._stop.wait())
        done, _ = await asyncio.wait({*works, stopped}, return_when=asyncio.FIRST_COMPLETED)
        watches.stop.set()
        for task in works:
            if task.get_name() != "watches":
                task.cancel()
        await asyncio.wait(works, timeout=5)
        for task in done - {stopped}:
            # kopf ends in good order on a signal of its own; an error of any work is raised.
            if not task.cancelled():
                task.result()

    async def _beat(self) -> None:
        """Tell the health thread that the event loop turns."""
        while True:
            self._pulse.turned_at = time.monotonic()
            if self._watch is not None:
                self._pulse.watch_age_s = self._watch.age(time.time())
            await asyncio.sleep(1)

    def _hands(
        self, kube: Kube, store: Store, leadership: Leadership, bell: Bell, epoch: int
    ) -> Hands:
        settings, outbox = self._settings, Outbox(bell.ring)
        return Hands(
            kube=kube,
            store=store,
            teller=Teller(kube, outbox),
            outbox=outbox,
            stamp=Stamp(epoch, f"{epoch}-0-{int(time.time() * 1000)}"),
            clock=time.time,
            leads=leadership.holds,
            pod_settings=pod_settings(settings),
            holders=holder_settings(settings),
        )

    def _desk(self, kube: Kube, store: Store, bell: Bell) -> PriceDesk:
        settings = self._settings
        return PriceDesk(
            Deskwork(
                kube=kube,
                store=store,
                pool=HeaderPool(),
                sources=SourceSettings(
                    endpoint=settings.text("HF_ENDPOINT"),
                    allow=tuple(settings.items("SOURCE_ALLOW")),
                ),
                settings=price_settings(settings),
                inspect_image=settings.text("IMAGE_OPERATOR"),
                changed=bell.ring,
                clock=time.time,
            )
        )

    def _frame(self, epoch: int, health: WatchHealth, now: float) -> Frame:
        return frame_of(self._settings, epoch=epoch, healthy_since=health.healthy_since(now))
