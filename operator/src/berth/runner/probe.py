"""Is the engine healthy, and has it work in hand? Questions over its own HTTP API."""

import http.client
import json
import re

from berth.runner.config import RunnerConfig

TIMEOUT_S = 2.0
"""A probe that takes longer has failed; a busy engine answers late, and is asked again."""

_GAUGES = {
    "llamacpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
}
"""The gauges whose sum is the work in hand, by kind of engine."""


class Probe:
    """Asks one engine. Never raises: what cannot be learnt is False or None."""

    def __init__(self, config: RunnerConfig) -> None:
        self._host, self._port = config.host, config.port
        self._health_path, self._kind = config.health_path, config.busy_probe
        self._metrics_path = config.metrics_path
        self._gauges = config.busy_gauges or _GAUGES.get(config.busy_probe)

    def is_healthy(self) -> bool:
        """The health path answers 200; an engine without one is healthy as long as it runs."""
        if not self._health_path:
            return True
        return self._get(self._health_path)[0] == http.client.OK

    def is_busy(self) -> bool | None:
        """Work in hand: running or queued. None when the engine would not say."""
        names = self._gauges
        if names is None:
            return None
        status, body = self._get(self._metrics_path)
        if status == http.client.OK:
            return read_gauges(body, names)
        if self._kind == "llamacpp" and status:
            # Started without --metrics: the slots tell of running work, not of the queue.
            status, body = self._get("/slots")
            return read_slots(body) if status == http.client.OK else None
        return None

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()


def read_gauges(text: str, names: tuple[str, ...]) -> bool | None:
    """Whether the named gauges of a Prometheus page add up to more than 0; None without any."""
    pattern = rf"^(?:{'|'.join(map(re.escape, names))})(?:\{{.*\}})? +([0-9.eE+-]+)"
    values = [float(value) for value in re.findall(pattern, text, re.MULTILINE)]
    return sum(values) > 0 if values else None


def read_slots(text: str) -> bool | None:
    """Whether any slot of llama.cpp's ``/slots`` is processing; None when it is not that page."""
    try:
        return any(slot["is_processing"] for slot in json.loads(text))
    except (ValueError, TypeError, KeyError):
        return None
