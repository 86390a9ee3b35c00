"""Is this process alive, ready, and what are its figures? Answered by a thread of its own."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest

STUCK_S = 60.0
"""An event loop that did not turn for so long is stuck."""
DEAF_S = 150.0
"""A leader that renews its Lease but has not seen it come back for so long has a dead watch."""


@dataclass
class Pulse:
    """What the main thread tells the health thread. Moments are on the monotonic clock."""

    turned_at: float
    """When the event loop last turned."""
    connected: bool = False
    leads: bool = False
    listed: bool = False
    watch_age_s: float = 0.0


def judge_alive(pulse: Pulse, now: float) -> tuple[bool, str]:
    """Whether a restart would not help: the loop turns, and a leader's watch is not deaf."""
    stuck = now - pulse.turned_at
    if stuck > STUCK_S:
        return False, f"the event loop has not turned for {stuck:.0f} s"
    if pulse.leads and pulse.listed and pulse.watch_age_s > DEAF_S:
        return False, f"no event has come for {pulse.watch_age_s:.0f} s"
    role = "leader" if pulse.leads else "standby"
    return True, f"ok, {role}, watch age {pulse.watch_age_s:.0f} s"


def judge_ready(pulse: Pulse) -> tuple[bool, str]:
    """A standby is ready: a new version must not wait for a Lease that the old one holds."""
    if not pulse.connected:
        return False, "not connected to the API server"
    if pulse.leads and not pulse.listed:
        return False, "leader, but not every kind was listed yet"
    return True, "ok"


def serve_health(
    port: int, pulse: Pulse, registry: CollectorRegistry, clock: Callable[[], float]
) -> ThreadingHTTPServer:
    """Serve ``/healthz``, ``/readyz`` and ``/metrics`` on ``port`` (0: a free one) until shut down."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/healthz":
                    self._answer(*judge_alive(pulse, clock()))
                case "/readyz":
                    self._answer(*judge_ready(pulse))
                case "/metrics":
                    self._send(200, generate_latest(registry), "text/plain; version=0.0.4")
                case _:
                    self._send(404, b"not found\n", "text/plain")

        def _answer(self, good: bool, text: str) -> None:
            self._send(200 if good else 503, f"{text}\n".encode(), "text/plain")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """A line per probe says nothing."""

    server = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
