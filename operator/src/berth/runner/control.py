"""What does the runner say of itself? The control port: ``/health`` for the kubelet, ``/state``."""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Snapshot = Callable[[], Mapping[str, object]]
"""Gives the present state; ``status`` is the phase's word."""

RETRY_AFTER_S = 30
"""What clients are told while the runner drains."""


class ControlPort:
    """A small HTTP server in a thread of its own, so that a busy supervisor still answers."""

    def __init__(self, host: str, port: int, snapshot: Snapshot) -> None:
        handler = type("Handler", (_Handler,), {"snapshot": staticmethod(snapshot)})
        self._server = _Server((host, port), handler)
        self.port: int = self._server.server_address[1]

    def start(self) -> None:
        """Begin to answer."""
        threading.Thread(target=self._server.serve_forever, name="control", daemon=True).start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    snapshot: Snapshot
    timeout = 5
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        state = self.snapshot()
        if self.path == "/health":
            self._answer(200 if state["status"] == "ok" else 503, {"status": state["status"]})
        elif self.path == "/state":
            self._answer(200, state)
        else:
            self._answer(404, {"error": "only /health and /state are here"})

    def _answer(self, code: int, body: Mapping[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if code == 503:
            self.send_header("Retry-After", str(RETRY_AFTER_S))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Say nothing: the kubelet asks every few seconds."""
