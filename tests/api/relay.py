"""How is a way to a port of this machine made that can fall silent, or be cut?"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from cluster.controlplane import ControlPlane


class Relay:
    """Passes TCP on to a port of this machine, until its open connections are silenced.

    ``delay_s`` is what it keeps everything back that a client sends.
    """

    def __init__(self, target: int, *, delay_s: float = 0.0) -> None:
        self._target = target
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._generation = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Connections that are open now carry nothing any more; new ones do."""
        self._generation += 1

    def close(self) -> None:
        """Nobody can connect any more."""
        # Without this a thread that accepts would keep the port open.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, delay_s in ((near, far, self._delay_s), (far, near, 0.0)):
                threading.Thread(
                    target=self._pump, args=(source, sink, delay_s, self._generation), daemon=True
                ).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, delay_s: float, generation: int
    ) -> None:
        try:
            while data := source.recv(1 << 16):
                time.sleep(delay_s)
                if generation == self._generation:
                    sink.sendall(data)
            if generation == self._generation:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


@contextmanager
def relay(target: int, *, delay_s: float = 0.0) -> Iterator[Relay]:
    """A way to this port, for the time of the block."""
    way = Relay(target, delay_s=delay_s)
    try:
        yield way
    finally:
        with suppress(OSError):
            way.close()


def kubeconfig_through(plane: ControlPlane, port: int, folder: Path) -> Path:
    """An administrator's kubeconfig whose server is this port."""
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
