"""When does a member of a group get its pod, and when does it go? After its head, each time."""

import logging
from dataclasses import dataclass

from berth.api.runner import Runner
from berth.controller.apply import Hands
from berth.controller.removal import delete_runner
from berth.kube.client import ApiError
from berth.kube.refs import PODS
from berth.manifests.pod import runner_pod

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Part:
    runner: Runner
    head: Runner | None


async def keep_groups(hands: Hands) -> None:
    """Start members once the head has its address; end those whose head is gone."""
    for part in _parts(hands):
        try:
            if part.head is None:
                await _end(hands, part.runner)
            else:
                await _start(hands, part.runner, part.head)
        except ApiError as err:
            log.warning("member %s: %s", part.runner.key, err)


def _parts(hands: Hands) -> list[_Part]:
    found = []
    for runner in list(hands.store.runners):
        group = runner.spec.group
        if group is None or not group.rank or runner.metadata.deletion_timestamp:
            continue
        head = hands.store.runners.get(f"{runner.metadata.namespace}/{group.head}")
        found.append(_Part(runner, head))
    return found


async def _start(hands: Hands, runner: Runner, head: Runner) -> None:
    """The head's pod is only made when every member is admitted: then the others follow."""
    pods = hands.store.pods
    pod = pods.get(head.key)
    if pod is None or pod.deleting or not pod.ip or pod.runner_uid != head.metadata.uid:
        return
    if pods.get(runner.key) is not None or runner.status.pod:
        return
    body = runner_pod(runner, hands.pod_settings, head_address=pod.ip)
    pods.put(await hands.kube.create(PODS, body, runner.metadata.namespace))
    log.info("member %s starts beside its head at %s", runner.key, pod.ip)


async def _end(hands: Hands, runner: Runner) -> None:
    """Not before the head's pod is gone: until then it may still answer, and needs its members."""
    group = runner.spec.group
    assert group is not None
    head = hands.store.pods.get(f"{runner.metadata.namespace}/{group.head}")
    if head is not None and not _is_lost(hands, head.node):
        return
    log.info("member %s: its head is gone, it is deleted", runner.key)
    await delete_runner(hands.kube, hands.store, runner)


def _is_lost(hands: Hands, name: str) -> bool:
    node = hands.store.nodes.get(name)
    return node is None or not node.ready
