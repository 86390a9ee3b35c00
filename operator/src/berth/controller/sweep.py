"""What is left over from before this leader began, and what must begin again under its epoch?"""

import logging

from berth.controller.apply import Hands, write_runner
from berth.controller.removal import RUNNERS, delete_runner
from berth.controller.views import PodView
from berth.kube.client import ApiError
from berth.kube.refs import PODS

log = logging.getLogger(__name__)


async def sweep(hands: Hands) -> int:
    """Delete what no Model owns any more; returns how many objects.

    1. A Runner whose Model is gone, or is another of the same name.
    2. A pod of Berth's whose Runner is gone.
    Garbage collection does the same in its own time; GPUs should not wait for it.
    """
    store, swept = hands.store, 0
    models = {model.metadata.uid for model in store.models}
    for runner in list(store.runners):
        if runner.spec.model_ref.uid in models:
            continue
        log.info("runner %s: its model is gone, it is deleted", runner.key)
        await delete_runner(hands.kube, store, runner)
        swept += 1
    return swept + await sweep_pods(hands)


async def sweep_pods(hands: Hands) -> int:
    """Delete runner pods without a Runner: nobody would ever end them."""
    runners = {runner.metadata.uid for runner in hands.store.runners}
    swept = 0
    for pod in list(hands.store.pods):
        if not pod.is_runner or pod.runner_uid in runners or pod.deleting:
            continue
        if await _runner_exists(hands, pod):
            continue
        log.info("pod %s: its runner is gone, it is deleted", pod.key)
        await hands.kube.delete(PODS, pod.name, pod.namespace, uid=pod.uid)
        swept += 1
    return swept


async def _runner_exists(hands: Hands, pod: PodView) -> bool:
    """Asked before a pod is deleted: a watch may show a pod before the Runner that it belongs to."""
    try:
        runner = await hands.kube.get(RUNNERS, pod.runner, pod.namespace)
    except ApiError as err:
        if err.not_found:
            return False
        raise
    hands.store.runners.put(runner)
    return bool(runner["metadata"].get("uid") == pod.runner_uid)


async def restamp(hands: Hands) -> None:
    """Give reservations without a pod this leader's epoch and a new pass.

    An admission that a former leader asked for may have run out on the agent's clock without our
    knowing: only one for this pass counts.
    """
    pods = {pod.runner_uid for pod in hands.store.pods if pod.is_runner}
    for runner in list(hands.store.runners):
        if runner.spec.stage != "Reserved" or runner.metadata.uid in pods or runner.status.pod:
            continue
        try:
            await write_runner(hands, runner, passId=hands.stamp.pass_id)
        except ApiError as err:
            log.warning("runner %s keeps its old pass: %s", runner.key, err)
