"""What do agents see of the cluster? Watches that all agents of one process share.

One process is one agent on a real node, and many on the fake nodes of a test: each object is
parsed once, and those of other nodes are not kept at all.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from berth.agent.claims import OTHERS, OtherPod, read_other
from berth.agent.pods import SELECTOR, Pod, read_pod
from berth.api.model import Model
from berth.api.residency import Residency
from berth.api.runner import Runner
from berth.kube.cache import Cache, typed_cache
from berth.kube.client import Kube
from berth.kube.refs import PODS, ref_of

Object = dict[str, Any]


@dataclass(frozen=True)
class SeenModel:
    """What is kept of a Model: whole only where it names a host path, for a cluster may have many."""

    uid: str
    with_path: Model | None
    is_pinned: bool = False


class Listener(Protocol):
    """One node's agent. A value of None: the object is gone, from the cluster or from the node."""

    node: str

    def runner_changed(self, key: str, runner: Runner | None) -> None: ...

    def pod_changed(self, key: str, pod: Pod | None) -> None: ...

    def policy_changed(self) -> None: ...


class Views:
    """The watches. ``epoch`` is the highest epoch of a controller that any Runner carried."""

    def __init__(self, kube: Kube, nodes: Collection[str] | None = None) -> None:
        """``nodes``: all that an agent may be added for; None: any."""
        one = next(iter(nodes)) if nodes is not None and len(nodes) == 1 else ""
        self._nodes = None if nodes is None else frozenset(nodes)
        self._listeners: dict[str, Listener] = {}
        self.epoch = 0
        self.runners: Cache[Runner | None] = Cache(
            kube, ref_of(Runner), self._read_runner, changed=self._runner_changed
        )
        self.pods: Cache[Pod | None] = Cache(
            kube,
            PODS,
            self._read_pod,
            changed=self._pod_changed,
            labels=SELECTOR,
            fields=f"spec.nodeName={one}" if one else "",
        )
        self.others: Cache[OtherPod | None] = Cache(
            kube,
            PODS,
            self._read_other,
            labels=OTHERS,
            fields=f"spec.nodeName={one}" if one else "",
        )
        self.residencies = typed_cache(kube, Residency, changed=self._policy_changed)
        self.models: Cache[SeenModel] = Cache(
            kube, ref_of(Model), _read_model, changed=self._policy_changed
        )

    def add(self, listener: Listener) -> None:
        """Tell this agent of its node's objects from now on, and of those known already."""
        self._listeners[listener.node] = listener
        for key, runner in list(self.runners.items()):
            if runner is not None and runner.spec.node_name == listener.node:
                listener.runner_changed(key, runner)
        for key, pod in list(self.pods.items()):
            if pod is not None and pod.node == listener.node:
                listener.pod_changed(key, pod)

    def remove(self, listener: Listener) -> None:
        if self._listeners.get(listener.node) is listener:
            del self._listeners[listener.node]

    @property
    def caches(self) -> tuple[Cache[Any], ...]:
        """What is to be run."""
        return (self.runners, self.pods, self.others, self.residencies, self.models)

    def is_synced(self) -> bool:
        return all(cache.synced.is_set() for cache in self.caches)

    def host_path_models(self) -> Iterable[Model]:
        """Models whose files are host paths."""
        return [seen.with_path for seen in self.models.values() if seen.with_path is not None]

    def model_uids(self) -> frozenset[str]:
        """Of every Model there is."""
        return frozenset(seen.uid for seen in self.models.values())

    def pinned_uids(self) -> frozenset[str]:
        """Of Models that are never ended for being idle."""
        return frozenset(seen.uid for seen in self.models.values() if seen.is_pinned)

    def _read_runner(self, obj: Object) -> Runner | None:
        """None, which is not kept, for one of a node that nobody here works on."""
        spec = obj.get("spec") or {}
        self.epoch = max(self.epoch, int(spec.get("epoch") or 0))
        return Runner.model_validate(obj) if self._keeps(spec.get("nodeName")) else None

    def _read_pod(self, obj: Object) -> Pod | None:
        pod = read_pod(obj)
        return pod if pod is not None and self._keeps(pod.node) else None

    def others_on(self, node: str) -> list[OtherPod]:
        """The pods on a node that are not Berth's."""
        return [pod for pod in self.others.values() if pod is not None and pod.node == node]

    def _read_other(self, obj: Object) -> OtherPod | None:
        pod = read_other(obj)
        return pod if pod is not None and self._keeps(pod.node) else None

    def _keeps(self, node: str | None) -> bool:
        return bool(node) and (self._nodes is None or node in self._nodes)

    def _runner_changed(self, key: str, runner: Runner | None) -> None:
        if runner is not None and (listener := self._listeners.get(runner.spec.node_name)):
            listener.runner_changed(key, runner)
        elif runner is None:
            for listener in self._listeners.values():
                listener.runner_changed(key, None)

    def _pod_changed(self, key: str, pod: Pod | None) -> None:
        if pod is not None and (listener := self._listeners.get(pod.node)):
            listener.pod_changed(key, pod)
        elif pod is None:
            for listener in self._listeners.values():
                listener.pod_changed(key, None)

    def _policy_changed(self, _key: str, _value: object) -> None:
        for listener in self._listeners.values():
            listener.policy_changed()


def _read_model(obj: Object) -> SeenModel:
    source = (obj.get("spec") or {}).get("source") or {}
    names_path = (source.get("path") or {}).get("hostPath")
    return SeenModel(
        obj["metadata"]["uid"],
        Model.model_validate(obj) if names_path else None,
        is_pinned=(obj.get("spec") or {}).get("residency") == "Pinned",
    )
