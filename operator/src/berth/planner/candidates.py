"""Which nodes and devices may a model use at all, whatever is free there?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, islice

from berth.planner.actions import PlaceNo
from berth.planner.amounts import ALLOCATABLE, NodeBook
from berth.planner.arithmetic import is_unified
from berth.planner.book import Book, is_listed
from berth.planner.copies import carried
from berth.planner.state import HOST, Claim, Device, Need, Node, Runner, Taint, Toleration
from berth.planner.turns import refuse_autoload
from berth.planner.wishes import Wish
from berth.reasons import Reason
from berth.units import Bytes

MAX_DEVICE_SETS = 128
"""Sets of devices tried on one node: 8 devices, 4 at a time, are 70."""

HARD = frozenset(
    {
        Reason.NO_NODE,
        Reason.NO_DEVICE,
        Reason.CPU_NOT_ALLOWED,
        Reason.UNTRUSTED_PATH,
        Reason.UNTRUSTED_CODE,
    }
)
"""Refusals that no wait will end; every other one may end by itself."""

_PASSING_TAINTS = "node.kubernetes.io/"
"""Taints that Kubernetes sets and takes back itself."""


@dataclass(frozen=True)
class Candidate:
    """A node, a set of devices (none: the CPU) and the way to run there."""

    node: str
    devices: tuple[str, ...]
    need: Need
    variant: int
    carried: Bytes = Bytes(0)
    """File pages that copies on the node hold already: it is not charged for them again."""


def claim_of(candidate: Candidate) -> Claim:
    """What a runner there claims."""
    need = candidate.need
    return Claim(
        Bytes(need.host - candidate.carried), tuple(zip(candidate.devices, need.gpus, strict=True))
    )


# Each rule says why a node is out of the question for a wish, or nothing. The first that speaks wins.


def refuse_selector(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """The Model's nodeSelector, and the nodes that alone can see its files."""
    model = wish.model
    for key, value in model.node_selector.items():
        if node.labels.get(key) != value:
            return PlaceNo(node.name, "", Reason.NO_NODE, message=f"label {key} is not {value}")
    if model.local_nodes is not None and node.name not in model.local_nodes:
        return PlaceNo(node.name, "", Reason.NO_NODE, message="its files are on another node")
    return None


def refuse_policy(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """A policy that lists models keeps its nodes for them."""
    listed = node.policy.models
    if not listed or is_listed(listed, wish.model.key):
        return None
    message = f"residency {node.policy.name} keeps the node for other models"
    return PlaceNo(node.name, "", Reason.NO_NODE, message=message)


def refuse_untrusted(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """What a profile brings to run on a node is run only where a policy trusts it."""
    lacking = sorted(wish.model.runs_code - node.policy.trust)
    if not lacking:
        return None
    name = node.policy.name
    who = f"residency {name} does not trust" if name else "no residency trusts here"
    message = f"its profile has {', '.join(lacking)}, which {who}"
    return PlaceNo(node.name, "", Reason.UNTRUSTED_CODE, message=message)


def refuse_target(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """A copy pinned to a place goes nowhere else; a prepared one stays where its files are."""
    if wish.prepared is not None and node.name not in homes_of(book, wish.prepared):
        return PlaceNo(node.name, "", Reason.EXCLUDED, message="files were fetched elsewhere")
    if not wish.target or node.name == wish.target.partition("/")[0]:
        return None
    if any(wish.target == device.uuid for device in node.devices):
        return None
    return PlaceNo(node.name, "", Reason.NO_NODE, message=f"pinned to {wish.target}")


def homes_of(book: Book, prepared: Runner) -> tuple[str, ...]:
    """The nodes on which a prepared runner has its files: one, or one for each member of its group."""
    return tuple(member.node for member in book.whole(prepared))


def refuse_taints(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """NoSchedule and NoExecute taints that the Model does not tolerate."""
    for taint in node.taints:
        if taint.effect == "PreferNoSchedule" or is_tolerated(taint, wish.model.tolerations):
            continue
        passing = taint.key.startswith(_PASSING_TAINTS)
        reason = Reason.NODE_NOT_READY if passing else Reason.NO_NODE
        return PlaceNo(node.name, "", reason, message=f"taint {taint.key}:{taint.effect}")
    return None


def refuse_unready(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """Not ready, or cordoned."""
    if not node.ready:
        return PlaceNo(node.name, "", Reason.NODE_NOT_READY, message="the node is not ready")
    if not node.schedulable:
        return PlaceNo(node.name, "", Reason.NODE_NOT_READY, message="the node is cordoned")
    return None


def refuse_agent(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """Without a fresh report of its agent nothing is known about the node."""
    if node.agent_fresh:
        return None
    return PlaceNo(node.name, "", Reason.NO_AGENT, message="its agent has not reported lately")


def refuse_held(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """A hold has taken the node."""
    if not node.held_by:
        return None
    return PlaceNo(node.name, "", Reason.HELD, message=f"held by {node.held_by}")


def refuse_excluded(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """A load of this model failed here a moment ago."""
    for name, until in wish.model.restarts.excluded:
        if name == node.name and until > book.state.now:
            book.wake(until)
            message = "a load failed here, the node is left out for a while"
            return PlaceNo(node.name, "", Reason.EXCLUDED, message=message)
    return None


NodeRule = Callable[[Book, Node, Wish], PlaceNo | None]

NODE_RULES: tuple[NodeRule, ...] = (
    refuse_selector,
    refuse_policy,
    refuse_untrusted,
    refuse_target,
    refuse_autoload,
    refuse_taints,
    refuse_unready,
    refuse_held,
    refuse_agent,
    refuse_excluded,
)


def refuse_node(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """Why the node is out of the question now; ``None``: it may be used. First rule wins.

    What the Model asks for comes first, so that "no such node" is told before "not ready".
    """
    for rule in NODE_RULES:
        no = rule(book, node, wish)
        if no is not None:
            return no
    return None


def is_tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    """Kubernetes' own matching of a taint."""
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def allows_cpu(node: Node) -> bool:
    """D2: ``auto`` allows CPU runners only on nodes without a GPU."""
    wish = node.policy.cpu_runners.lower()
    return wish == "always" or (wish == "auto" and not node.devices)


def usable_devices(node: Node, wish: Wish) -> list[Device]:
    """The node's devices that its policy and the Model's ``device`` (and ``pinTo``) allow.

    1. The policy's list names UUIDs or indexes; empty: all. Those that it keeps for listed models
       are for these alone.
    2. ``auto`` and ``cuda``: any; ``cuda:N``: that index; else a UUID.
    3. ``cpu``: none. 4. One of the names that the runtime asks for, where it does.
    """
    device = wish.model.device
    allowed = [d for d in node.devices if _names(node.policy.devices, d)]
    parts = [part.lower() for part in wish.model.device_names]
    allowed = [d for d in allowed if not parts or any(part in d.name.lower() for part in parts)]
    allowed = [d for d in allowed if not _is_kept_for_others(node, d, wish.model.key)]
    if device == "cpu":
        return []
    if device.startswith("cuda:"):
        allowed = [d for d in allowed if f"cuda:{d.index}" == device]
    elif device not in ("auto", "cuda", ""):
        allowed = [d for d in allowed if d.uuid == device]
    place = wish.target.partition("/")[2] or wish.target
    if wish.target and place != node.name:
        allowed = [d for d in allowed if place in (d.uuid, f"cuda:{d.index}")]
    return allowed


def _is_kept_for_others(node: Node, device: Device, key: str) -> bool:
    return any(
        _names(kept.devices, device) and not is_listed(kept.models, key)
        for kept in node.policy.kept_devices
    )


def _names(listed: frozenset[str], device: Device) -> bool:
    return not listed or device.uuid in listed or str(device.index) in listed


def gpu_candidates(book: Book, node: Node, wish: Wish) -> Iterator[Candidate]:
    """Every set of devices on the node that could hold the model emptied, each with its best variant.

    1. A variant takes as many devices as it has amounts; one, unless the profile asks for more.
    2. On each set the first variant counts that would fit if the set were empty: the fewest
       layers on the host, never fewer because somebody is there just now.
    """
    devices = usable_devices(node, wish)
    if not devices:
        return
    place = book.at(node.name)
    for count in sorted({len(need.gpus) for need in wish.model.needs if need.gpus}):
        for chosen in islice(combinations(devices, count), MAX_DEVICE_SETS):
            for variant, need in enumerate(wish.model.needs):
                if len(need.gpus) != count:
                    continue
                order = _matched(place, chosen, need)
                if order is not None:
                    kept = carried(node, wish.model, need.file_pages)
                    yield Candidate(node.name, order, need, variant, kept)
                    break


def _matched(place: NodeBook, chosen: tuple[Device, ...], need: Need) -> tuple[str, ...] | None:
    """The devices in the order of ``need.gpus``, or ``None`` where they could not hold it emptied."""
    if len(chosen) == 1:
        order: tuple[str, ...] = (chosen[0].uuid,)
    else:
        roomy = sorted(chosen, key=lambda d: (-_emptied(place, d), d.index))
        largest = sorted(range(len(need.gpus)), key=lambda i: (-need.gpus[i], i))
        seats = {position: roomy[rank].uuid for rank, position in enumerate(largest)}
        order = tuple(seats[position] for position in range(len(need.gpus)))
    return order if holds_emptied(place, order, need) else None


def _emptied(place: NodeBook, device: Device) -> int:
    return 0 if is_unified(device) else place.emptied.get(device.uuid, 0)


def cpu_candidates(node: Node, wish: Wish) -> Iterator[Candidate]:
    """The node's CPU, where the model has a way to run there and the policy allows it."""
    if wish.model.device not in ("auto", "cpu", "") or not allows_cpu(node):
        return
    if wish.target and wish.target != node.name:
        return
    for variant, need in enumerate(wish.model.needs):
        if not need.gpus:
            kept = carried(node, wish.model, need.file_pages)
            yield Candidate(node.name, (), need, variant, kept)
            return


def holds_emptied(place: NodeBook, devices: tuple[str, ...], need: Need) -> bool:
    """Whether the place could hold the need if nobody else were there."""
    host = int(need.host)
    for uuid, size in zip(devices, need.gpus, strict=True):
        if uuid in place.unified:
            host += size
        elif place.emptied.get(uuid, 0) < size:
            return False
    return host <= place.emptied[HOST] and need.host <= place.emptied[ALLOCATABLE]
