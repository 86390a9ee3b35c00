"""How does an object go, so that the next pass does not count on it any more?"""

from dataclasses import replace

from berth.api.runner import Runner
from berth.controller.store import Store
from berth.controller.views import PodView
from berth.kube.client import Kube
from berth.kube.refs import PODS, ref_of

RUNNERS = ref_of(Runner)


async def delete_runner(kube: Kube, store: Store, runner: Runner) -> None:
    """Delete this very Runner. Raises ApiError, ApiUnreachableError."""
    meta = runner.metadata
    await kube.delete(RUNNERS, meta.name, meta.namespace, uid=meta.uid)
    store.runners.drop(runner.key, meta.uid)


async def delete_pod(kube: Kube, store: Store, pod: PodView, *, grace_s: int | None = None) -> None:
    """Have this very pod end, within ``grace_s`` where that is said. Raises ApiError, ApiUnreachableError.

    What is gone, or goes at once, is dropped; until then a pod is one that is being deleted.
    """
    there = await kube.delete(PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=grace_s)
    if there and grace_s != 0:
        store.pods.amend(pod.key, pod.uid, lambda view: replace(view, deleting=True))
    else:
        store.pods.drop(pod.key, pod.uid)
