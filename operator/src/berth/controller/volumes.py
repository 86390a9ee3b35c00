"""Which nodes can see a claim's volume?

The volume's own node affinity says it, and for a volume of one node at a time, who mounts it now.
"""

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass

from berth.controller.views import NodeView, PodView
from berth.kube.client import ApiError, Kube, Object
from berth.kube.refs import CLAIMS, VOLUMES

_ONE_NODE = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})


@dataclass(frozen=True)
class Requirement:
    """One requirement of a node selector; of a field where ``field``, else of a label."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    field: bool = False


Term = tuple[Requirement, ...]
"""All of its requirements must hold; of several terms, one."""


@dataclass(frozen=True)
class Volume:
    """What is behind a claim. ``terms`` None: nothing ties it to a node, or it is not bound yet."""

    one_node: bool = False
    terms: tuple[Term, ...] | None = None


async def read_volume(kube: Kube, namespace: str, claim: str) -> Volume | None:
    """None when there is no such claim. Raises ApiError for anything else that goes wrong."""
    found = await _get(kube.get(CLAIMS, claim, namespace))
    if found is None:
        return None
    spec = found.get("spec") or {}
    modes = frozenset(spec.get("accessModes") or ())
    name = spec.get("volumeName") or ""
    volume = await _get(kube.get(VOLUMES, name)) if name else None
    return Volume(one_node=bool(modes) and modes <= _ONE_NODE, terms=_terms(volume or {}))


async def _get(answer: Awaitable[Object]) -> Object | None:
    try:
        return await answer
    except ApiError as err:
        if err.not_found:
            return None
        raise


def _terms(volume: Object) -> tuple[Term, ...] | None:
    affinity = (volume.get("spec") or {}).get("nodeAffinity") or {}
    required = affinity.get("required")
    if not required:
        return None
    return tuple(_term(term) for term in required.get("nodeSelectorTerms") or ())


def _term(term: Object) -> Term:
    return tuple(
        Requirement(
            key=str(row.get("key") or ""),
            operator=str(row.get("operator") or ""),
            values=tuple(str(value) for value in row.get("values") or ()),
            field=of_field,
        )
        for rows, of_field in (("matchExpressions", False), ("matchFields", True))
        for row in term.get(rows) or ()
    )


def holders(pods: Iterable[PodView], namespace: str, claim: str) -> frozenset[str]:
    """The nodes on which a pod mounts the claim now; pods that only look at its files left out."""
    return frozenset(
        pod.node
        for pod in pods
        if pod.node
        and claim in pod.claims
        and pod.namespace == namespace
        and not pod.finished
        and pod.inspects is None
    )


def nodes_seeing(
    volume: Volume, nodes: Iterable[NodeView], held_on: frozenset[str]
) -> frozenset[str] | None:
    """Which nodes may mount the volume; None: all of them, as far as can be told.

    ``held_on`` are the nodes that mount it now, of a volume of one node at a time.

    1. A volume of one node at a time stays on the nodes that mount it now.
    2. Otherwise those that its node affinity names.
    """
    if held_on:
        return held_on
    if volume.terms is None:
        return None
    return frozenset(node.name for node in nodes if matches(volume.terms, node))


def matches(terms: Iterable[Term], node: NodeView) -> bool:
    """Kubernetes' own matching of a node selector: an empty term matches nothing."""
    return any(term and all(_holds(one, node) for one in term) for term in terms)


def _holds(one: Requirement, node: NodeView) -> bool:
    known: Mapping[str, str] = {"metadata.name": node.name} if one.field else node.labels
    value = known.get(one.key)
    match one.operator:
        case "In":
            return value in one.values
        case "NotIn":
            return value not in one.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compared(value, one)
    return False


def _compared(value: str | None, one: Requirement) -> bool:
    try:
        number, bound = int(value or ""), int(one.values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if one.operator == "Gt" else number < bound
