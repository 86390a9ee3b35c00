"""How is the volume driver of a node started?"""

import logging
import signal
import sys
import threading
from importlib import metadata
from pathlib import Path

from berth.agent.csi.mounts import Mounts
from berth.agent.csi.server import Driver, Sockets, serving
from berth.agent.csi.volumes import Volumes
from berth.settings import Settings

log = logging.getLogger(__name__)


def run() -> None:
    """Run until SIGTERM or SIGINT. What is mounted stays mounted."""
    settings = Settings()
    logging.basicConfig(
        level=settings.text("LOG_LEVEL").upper(), format="%(levelname)s: %(name)s: %(message)s"
    )
    if not settings.text("NODE_NAME"):
        sys.exit("berth csi: BERTH_NODE_NAME is empty; set it to the name of this node")
    kubelet = Path(settings.text("KUBELET_DIR"))
    volumes = Volumes(Path(settings.text("STORE_ROOT")), kubelet / "pods", Mounts())
    volumes.sweep()
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    driver = Driver(
        settings.text("NODE_NAME"),
        metadata.version("berth-operator"),
        Sockets.below(kubelet),
        volumes,
    )
    with serving(driver):
        told.wait()
    log.info("stopped; what is mounted stays")
