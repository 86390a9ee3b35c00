"""Does everything go with a Model, and with the chart? The last file: it takes away what the others use."""

import asyncio

import pytest

from cluster.release import NAMESPACE
from e2e.installed import Installed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


async def test_a_model_a_namespace_and_the_chart_go(berth: Installed) -> None:
    name = berth.model("last")
    assert (await berth.ask(name)).status_code == 200
    berth.kubectl("delete", "model", name, "--timeout=30s")
    await asyncio.to_thread(berth.wait, "its pod is gone", lambda: not berth.runner_pods(name))
    berth.model("stays")
    assert (await berth.ask("stays")).status_code == 200
    berth.api.helm("uninstall", "berth", f"--namespace={NAMESPACE}", "--wait")
    berth.kubectl("delete", "model", "stays", "--timeout=30s")
    await asyncio.to_thread(berth.wait, "its engine has ended", lambda: has_ended(berth), 90)
    # The driver that would unmount its files went with the chart, and the kubelet waits for it.
    berth.kubectl("delete", "pods", "-l", "berth.dev/model", "--force", "--grace-period=0")
    berth.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")
    berth.kubectl("delete", "-f", "charts/berth/crds", "--timeout=60s")


def has_ended(berth: Installed) -> bool:
    """Whether no engine of the model runs; its pod may still stand."""
    statuses = [
        status
        for pod in berth.every("pods", labels="berth.dev/model=stays")
        for status in pod["status"].get("containerStatuses", [])
    ]
    return all("terminated" in status["state"] for status in statuses)
