"""How is the agent started on a real node?"""

import asyncio
import logging
import signal
import sys
from pathlib import Path

from berth.agent.core import Agent
from berth.agent.courier import Courier
from berth.agent.files import StoreFiles
from berth.agent.gpus import NvmlGpus
from berth.agent.host import RealHost
from berth.agent.serve import serving
from berth.agent.sessions import SessionShelf
from berth.agent.store import Store
from berth.headers.address import SourcePolicy
from berth.kube.client import Kube
from berth.settings import Settings

log = logging.getLogger(__name__)


def run() -> None:
    """Run until SIGTERM or SIGINT. Runners, and what was told of them, stay as they are."""
    settings = Settings()
    logging.basicConfig(
        level=settings.text("LOG_LEVEL").upper(), format="%(levelname)s: %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if not settings.text("NODE_NAME"):
        sys.exit("berth agent: BERTH_NODE_NAME is empty; set it to the name of this node")
    asyncio.run(_main(settings))


async def _main(settings: Settings) -> None:
    root = Path(settings.text("STORE_ROOT"))
    courier = Courier(SourcePolicy(tuple(settings.items("SOURCE_ALLOW"))))
    async with await Kube.connect() as kube:
        store = Store(
            root,
            courier,
            hub=settings.text("HF_ENDPOINT"),
            keep_free=settings.bytes("DISK_RESERVE"),
        )
        agent = Agent(
            node=settings.text("NODE_NAME"),
            kube=kube,
            host=RealHost(
                store=root,
                proc=Path(settings.text("PROC_ROOT")),
                cgroup=Path(settings.text("CGROUP_ROOT")),
            ),
            gpus=NvmlGpus(),
            files=StoreFiles(
                store, _sessions(settings, root), budget=settings.bytes("DISK_BUDGET")
            ),
            settings=settings,
        )
        port = settings.number("HEALTH_PORT")
        async with serving(port, registry=agent.metrics.registry, ready=agent.not_ready):
            await _until_told(agent)
        await courier.close()


def _sessions(settings: Settings, root: Path) -> SessionShelf:
    age_s, budget = settings.seconds("SESSION_AGE"), settings.bytes("SESSION_BUDGET")
    return SessionShelf(root, age_s=age_s, budget=budget)


async def _until_told(agent: Agent) -> None:
    task = asyncio.create_task(agent.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        log.info("agent stopped; runners stay")
