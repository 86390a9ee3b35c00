"""How is a way to a port of this machine made that can fall silent, or be cut?"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Passes TCP on to a port of this machine, until its open connections are silenced."""

    def __init__(self, target: int) -> None:
        self._target = target
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
            for source, sink in ((near, far), (far, near)):
                threading.Thread(
                    target=self._pump, args=(source, sink, self._generation), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, generation: int) -> None:
        try:
            while data := source.recv(1 << 16):
                if generation == self._generation:
                    sink.sendall(data)
            if generation == self._generation:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


@contextmanager
def relay(target: int) -> Iterator[Relay]:
    """A way to this port, for the time of the block."""
    way = Relay(target)
    try:
        yield way
    finally:
        with suppress(OSError):
            way.close()
