"""How is Berth installed in a cluster with the project's own chart, and kept as it is when asked again?"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import build, cache, images
from cluster.problem import Problem
from cluster.progress import say
from cluster.whole import Cluster

CHART = images.CHECKOUT / "charts" / "berth"
NAMESPACE = "berth-system"
NAME = "berth"
ROLLOUT_DEADLINE_S = 180


@dataclass(frozen=True)
class Api:
    """A cluster's API server as kubectl and helm reach it."""

    state_dir: Path
    """Where notes about it are kept."""
    kubeconfig: Path | None = None
    """None: the current context of the user's own kubeconfig."""

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        return _run([*self.kubectl_command(), *args], stdin=stdin)

    def kubectl_command(self) -> list[str]:
        return [str(build.binary(build.KUBE)), "kubectl", *self._config("--kubeconfig")]

    def helm(self, *args: str, stdin: str | None = None) -> str:
        # Its own caches stay with the cluster, not with the user.
        homes = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        env = {name: str(self.state_dir / "helm" / name.lower()) for name in homes}
        command = [str(build.binary(build.HELM)), *self._config("--kubeconfig"), *args]
        return _run(command, stdin=stdin, env=env)

    def _config(self, flag: str) -> list[str]:
        return [flag, str(self.kubeconfig)] if self.kubeconfig else []


def load_images(cluster: Cluster) -> dict[str, Any]:
    """Builds the project's images, gives them to the node, and answers the chart's values for them."""
    operator, engine = (images.built(image) for image in (images.OPERATOR, images.LLAMACPP))
    for image in (operator, engine):
        cluster.load_image(image.archive, reference=image.reference)
    repository, _, tag = operator.reference.rpartition(":")
    return {
        "image": {"repository": repository, "tag": tag},
        "runnerImages": {"llamacpp": {"cpu": engine.reference}},
    }


def install(api: Api, values: Mapping[str, Any]) -> bool:
    """Installs or upgrades the chart and waits for its programs; False if all was so already."""
    if not (CHART / "Chart.yaml").exists():
        raise Problem(f"there is no chart in {CHART}", todo="check out the whole repository")
    note = api.state_dir / "release.json"
    wanted = json.dumps({"chart": cache.tree_digest(CHART), "values": values}, sort_keys=True)
    if note.exists() and note.read_text() == wanted and _is_deployed(api):
        return False
    say("installing the chart")
    # Helm installs the kinds of a chart once and never changes them again; this does.
    api.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
    _upgrade(api, values)
    note.write_text(wanted)
    return True


def _upgrade(api: Api, values: Mapping[str, Any]) -> None:
    arguments = [
        "upgrade", NAME, str(CHART), "--install", f"--namespace={NAMESPACE}", "--create-namespace",
        "--skip-crds", "--values=-", "--wait", f"--timeout={ROLLOUT_DEADLINE_S}s",
    ]  # fmt: skip
    try:
        api.helm(*arguments, stdin=json.dumps(values))
    except Problem as problem:
        raise Problem(f"{problem.what}\n{_why_not_ready(api)}", todo=problem.todo) from problem


def _why_not_ready(api: Api) -> str:
    """The programs' pods, and the last words of each one."""
    pods = api.kubectl("get", "pods", f"--namespace={NAMESPACE}", "--output=wide")
    warned = api.kubectl(
        "get", "events", f"--namespace={NAMESPACE}", "--field-selector=type=Warning",
        "--sort-by=.lastTimestamp", "--output=custom-columns=:.involvedObject.name,:.message",
        "--no-headers",
    )  # fmt: skip
    logs = api.kubectl(
        "logs", f"--namespace={NAMESPACE}", "--selector=app.kubernetes.io/instance=berth",
        "--prefix", "--tail=3", "--ignore-errors", "--all-containers",
    )  # fmt: skip
    latest = "\n".join(line[:300] for line in warned.splitlines()[-5:])
    return f"{pods}\n{latest}\n{logs}"


def _is_deployed(api: Api) -> bool:
    releases = json.loads(api.helm("list", f"--namespace={NAMESPACE}", "--output=json"))
    return any(r["name"] == NAME and r["status"] == "deployed" for r in releases)


def _run(
    command: list[str], *, stdin: str | None = None, env: Mapping[str, str] | None = None
) -> str:
    answer = subprocess.run(
        command, input=stdin, env=os.environ | dict(env or {}), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if answer.returncode != 0:
        shown = " ".join([Path(command[0]).name.partition("-")[0], *command[1:]])
        raise Problem(f"`{shown}` failed: {answer.stderr.strip()}", todo="see the message")
    return answer.stdout
