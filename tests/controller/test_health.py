"""Alive, ready, and the figures."""

import time
import urllib.error
import urllib.request

from berth.controller.health import Pulse, judge_alive, judge_ready, serve_health
from berth.controller.metrics import Metrics
from berth.controller.watch import WatchHealth


def test_a_standby_is_alive_and_ready_once_connected() -> None:
    assert judge_alive(Pulse(turned_at=100.0), 101.0)[0]
    assert not judge_ready(Pulse(turned_at=100.0))[0]
    assert judge_ready(Pulse(turned_at=100.0, connected=True))[0]


def test_a_leader_is_ready_once_every_kind_was_listed() -> None:
    assert not judge_ready(Pulse(0.0, connected=True, leads=True))[0]
    assert judge_ready(Pulse(0.0, connected=True, leads=True, listed=True))[0]


def test_a_stuck_loop_and_a_deaf_leader_are_not_alive() -> None:
    assert not judge_alive(Pulse(turned_at=0.0), 61.0)[0]
    deaf = Pulse(turned_at=100.0, leads=True, listed=True, watch_age_s=151.0)
    assert not judge_alive(deaf, 100.0)[0]


def test_the_watch_is_healthy_since_its_last_gap_ended() -> None:
    health = WatchHealth(0.0)
    for moment in (5.0, 10.0, 15.0):
        health.echo(moment)
    assert health.healthy_since(20.0) == 0.0
    assert health.healthy_since(50.0) == 50.0
    health.echo(60.0)
    assert health.healthy_since(62.0) == 60.0


def test_it_is_served() -> None:
    metrics = Metrics()
    metrics.passed("done", 0.1)
    server = serve_health(0, Pulse(time.monotonic()), metrics.registry, time.monotonic)
    base = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        assert _get(f"{base}/healthz")[0] == 200
        assert _get(f"{base}/readyz")[0] == 503
        assert 'berth_passes_total{outcome="done"} 1.0' in _get(f"{base}/metrics")[1]
        assert _get(f"{base}/other")[0] == 404
    finally:
        server.shutdown()
        server.server_close()


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as err:
        with err:
            return err.code, err.read().decode()
