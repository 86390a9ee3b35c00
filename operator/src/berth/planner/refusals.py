"""Why does a wanted model go nowhere now, in the numbers of each place, and can waiting help?"""

from collections.abc import Iterable, Sequence

from berth.planner.actions import PlaceNo, Refuse
from berth.planner.amounts import ALLOCATABLE, PODS, Amounts, amounts
from berth.planner.book import Book, short_name
from berth.planner.candidates import (
    HARD,
    Candidate,
    allows_cpu,
    claim_of,
    gpu_candidates,
    holds_emptied,
    usable_devices,
)
from berth.planner.eviction import is_in_use
from berth.planner.search import Search, candidates_on, is_kept, roomiest
from berth.planner.state import HOST, Need, Node, Runner, Stage
from berth.planner.wishes import Wish
from berth.reasons import Reason
from berth.units import Bytes, show_bytes

MOST_PLACES = 16
MOST_NODES = 64
"""Nodes looked at for the numbers of one refusal, the roomiest."""

TOLD_FIRST = (
    Reason.HELD,
    Reason.LOAD_IN_PROGRESS,
    Reason.BUSY,
    Reason.CAP,
    Reason.SETTLING,
    Reason.MEMORY,
    Reason.HOST_MEMORY,
    Reason.DISK_FULL,
    Reason.EXCLUDED,
    Reason.NODE_NOT_READY,
    Reason.NO_AGENT,
)
"""Of several reasons that may end by themselves, the one told: the sooner it ends, the earlier."""


def plan_refusal(book: Book, search: Search) -> Refuse:
    """The refusal of a wish that found no place.

    1. Places that could hold the model emptied: why each does not now. Pinned models alone in the
       way of every one of them: NoEvictableModel, final.
    2. Nodes that are out of the question: their first refusal; one that may end by itself, on a
       node that could hold the model, keeps the whole refusal from being final.
    3. Places that could never hold it: InsufficientCapacity where nothing else is left, final.
    4. No node left at all: the hardest reason of the nodes, final (no such node, no such device,
       no CPU runners).
    5. At most 16 places, one example, the roomiest, for each reason and size of place. Of a large
       fleet the roomiest nodes are looked at; more only until one is found that may be had later.
    """
    wish = search.wish
    taken = _taken(book, search)
    nodes = _node_nos(book, search, has_places=bool(taken))
    away = [no for no in nodes if no.reason not in HARD | {Reason.NEVER_FITS}]
    passing = [no for no in taken if no.reason is not Reason.ONLY_PINNED] + away
    every = [*taken, *nodes]
    places = grouped(every)
    if passing:
        reason = min((no.reason for no in passing), key=_told)
        return Refuse(wish.model.key, reason, _sentence(wish, reason, passing), places)
    reason = Reason.ONLY_PINNED if taken else _hardest(every)
    return Refuse(wish.model.key, reason, _sentence(wish, reason, every), places, final=True)


def _taken(book: Book, search: Search) -> list[PlaceNo]:
    """Why the places of eligible nodes are not to be had, the roomiest nodes first."""
    found: list[PlaceNo] = []
    for count, name in enumerate(roomiest(book, search)):
        if count >= MOST_NODES and any(no.reason is not Reason.ONLY_PINNED for no in found):
            break
        found += [_why_taken(book, search, c) for c in candidates_on(book, search, name)]
    return found


def _node_nos(book: Book, search: Search, *, has_places: bool) -> list[PlaceNo]:
    """Why nodes offer no place at all; of those that are merely away a few examples do, and of a
    large fleet nodes that are too small are not told where others are large enough."""
    found: list[PlaceNo] = []
    soft = 0
    for no in search.eligible.refused:
        if no.reason in HARD:
            found.append(no)
        elif soft < MOST_NODES:
            never = _never(book, book.nodes[no.node], search.wish)
            soft += never is None
            found.append(never or no)
    if has_places and len(search.eligible.nodes) > MOST_NODES:
        return found
    for name in search.eligible.nodes:
        if next(candidates_on(book, search, name), None) is None:
            never = _never(book, book.nodes[name], search.wish)
            found += [never] if never is not None else []
    return found


def _told(reason: Reason) -> int:
    return TOLD_FIRST.index(reason) if reason in TOLD_FIRST else len(TOLD_FIRST)


def _hardest(every: Sequence[PlaceNo]) -> Reason:
    reasons = {no.reason for no in every}
    for reason in (
        Reason.NEVER_FITS,
        Reason.UNTRUSTED_CODE,
        Reason.CPU_NOT_ALLOWED,
        Reason.NO_DEVICE,
        Reason.NO_NODE,
    ):
        if reason in reasons:
            return reason
    return Reason.NO_NODE


def _never(book: Book, node: Node, wish: Wish) -> PlaceNo | None:
    """Why the node could not hold the model even emptied; ``None``: it could."""
    if next(gpu_candidates(book, node, wish), None) is not None:
        return None
    place = book.at(node.name)
    gpus = [need for need in wish.model.needs if need.gpus]
    cpus = [need for need in wish.model.needs if not need.gpus]
    devices = usable_devices(node, wish)
    wants_cpu = wish.model.device in ("auto", "cpu", "") and bool(cpus)
    if wants_cpu and allows_cpu(node):
        if holds_emptied(place, (), cpus[0]):
            return None
        return _short(place.emptied, node, "", {HOST: cpus[0].host, ALLOCATABLE: cpus[0].host})
    if gpus and devices and wish.model.device != "cpu":
        best = max(devices, key=lambda d: (place.emptied.get(d.uuid, 0), -d.index))
        need = min(gpus, key=lambda n: (len(n.gpus), max(n.gpus)))
        if len(need.gpus) > len(devices):
            message = f"{len(need.gpus)} devices wanted, {len(devices)} here"
            return PlaceNo(node.name, "", Reason.NO_DEVICE, message=message)
        dim = HOST if best.uuid in place.unified else best.uuid
        takes = {dim: max(need.gpus) + (need.host if dim == HOST else 0)}
        takes |= {HOST: takes.get(HOST, need.host), ALLOCATABLE: int(need.host)}
        return _short(place.emptied, node, f"cuda:{best.index}", takes)
    if wants_cpu and (wish.model.device == "cpu" or not node.devices or not gpus):
        return PlaceNo(node.name, "", Reason.CPU_NOT_ALLOWED, message="no CPU runners here")
    wanted = " or ".join(wish.model.device_names) or wish.model.device
    return PlaceNo(node.name, "", Reason.NO_DEVICE, message=f"no device {wanted}")


def _short(emptied: Amounts, node: Node, device: str, takes: Amounts) -> PlaceNo:
    """A place that is too small even emptied, by the amount that is missing most."""
    dim = max(takes, key=lambda d: takes[d] - emptied.get(d, 0))
    need, have = Bytes(takes[dim]), Bytes(max(0, emptied.get(dim, 0)))
    where = device if dim not in (HOST, ALLOCATABLE) else "host"
    message = f"needs {show_bytes(need)} of {where}, {show_bytes(have)} when empty"
    return PlaceNo(node.name, device, Reason.NEVER_FITS, need, have, have, message)


def _why_taken(book: Book, search: Search, candidate: Candidate) -> PlaceNo:
    """Why a place that could hold the model does not now."""
    place = book.at(candidate.node)
    takes = amounts(place.node, claim_of(candidate), place.unified)
    device = device_name(place.node, candidate.devices)
    if is_kept(book, candidate) and not search.wish.overdue:
        message = "kept for a model that has waited longer"
        return PlaceNo(candidate.node, device, Reason.LOAD_IN_PROGRESS, message=message)
    lacks = place.lacks(takes)
    if not lacks:
        return _other_than_memory(book, search.wish, candidate, device)
    dim = max(lacks, key=lambda d: (d not in (ALLOCATABLE, PODS), lacks[d], d))
    need, have = Bytes(takes[dim]), Bytes(max(0, place.later(dim)))
    size = Bytes(max(0, place.emptied.get(dim, 0)))
    reason = _in_the_way(book, candidate, takes)
    if reason is Reason.MEMORY and dim in (HOST, ALLOCATABLE):
        reason = Reason.HOST_MEMORY
    if dim == PODS:
        message = f"the node takes no more than {place.node.allocatable_pods} pods"
    else:
        message = f"needs {show_bytes(need)}, {show_bytes(have)} free of {show_bytes(size)}"
    return PlaceNo(candidate.node, device, reason, need, have, size, message)


def _other_than_memory(book: Book, wish: Wish, candidate: Candidate, device: str) -> PlaceNo:
    node = book.nodes[candidate.node]
    if 0 < node.policy.max_runners <= book.group_size(node.policy.name):
        loaded = book.group_size(node.policy.name)
        message = f"{loaded} runners are loaded, no more than {node.policy.max_runners} may be"
        return PlaceNo(node.name, device, Reason.CAP, message=message)
    missing = sum(size for digest, size in wish.model.files if digest not in node.files)
    free = Bytes(max(0, book.at(node.name).disk))
    message = f"files of {show_bytes(missing)} to fetch, {show_bytes(free)} of disk free"
    return PlaceNo(node.name, device, Reason.DISK_FULL, Bytes(missing), free, message=message)


def _in_the_way(book: Book, candidate: Candidate, takes: Amounts) -> Reason:
    """Whose bytes are in the way: pinned models', running requests', loads', or strangers'."""
    if pinned_in_the_way(book, candidate, takes):
        return Reason.ONLY_PINNED
    mine = [r for r in _neighbours(book, candidate, takes) if not book.is_leaving(r)]
    if any(r.stage in (Stage.RESERVED, Stage.STARTING) for r in mine):
        return Reason.LOAD_IN_PROGRESS
    if book.placed_on(candidate.node):
        return Reason.LOAD_IN_PROGRESS
    if any(_is_used(book, r) for r in mine):
        return Reason.BUSY
    return Reason.MEMORY if not mine else Reason.BUSY


def _is_used(book: Book, runner: Runner) -> bool:
    model = book.models.get(runner.model)
    return model is not None and is_in_use(runner, model)


def _neighbours(book: Book, candidate: Candidate, takes: Amounts) -> Iterable[Runner]:
    place = book.at(candidate.node)
    dims = {dim for dim in takes if dim not in (PODS, ALLOCATABLE)}
    for runner in book.by_node.get(candidate.node, ()):
        held = book.takes(runner, place.unified)
        if any(held.get(dim, 0) > 0 for dim in dims):
            yield runner


def pinned_in_the_way(book: Book, candidate: Candidate, takes: Amounts) -> bool:
    """Whether pinned models alone leave too little room on the place."""
    place = book.at(candidate.node)
    left = {dim: place.emptied.get(dim, 0) for dim in takes}
    for runner in book.by_node.get(candidate.node, ()):
        model = book.models.get(runner.model)
        if model is None or not model.pinned or book.is_leaving(runner):
            continue
        for dim, size in book.takes(runner, place.unified).items():
            left[dim] = left.get(dim, 0) - size
    return any(size > left[dim] for dim, size in takes.items() if size > 0)


def device_name(node: Node, devices: tuple[str, ...]) -> str:
    """``cuda:0,cuda:1`` for people; empty for the CPU."""
    index = {device.uuid: device.index for device in node.devices}
    return ",".join(f"cuda:{index[uuid]}" for uuid in devices if uuid in index)


def grouped(every: Iterable[PlaceNo]) -> tuple[PlaceNo, ...]:
    """At most 16 places: one example, the roomiest, for each reason, text of none, and size."""
    best: dict[tuple[str, int, bool], PlaceNo] = {}
    for no in every:
        key = (no.reason.value, no.capacity, bool(no.device))
        known = best.get(key)
        if known is None or (-no.have, no.node, no.device) < (
            -known.have,
            known.node,
            known.device,
        ):
            best[key] = no
    ordered = sorted(best.values(), key=lambda no: (_told(no.reason), -no.have, no.node, no.device))
    return tuple(ordered[:MOST_PLACES])


def _sentence(wish: Wish, reason: Reason, nos: Sequence[PlaceNo]) -> str:
    """One sentence with names and numbers: what was wanted, the best place, and what is in the way."""
    name = short_name(wish.model.key)
    told = [no for no in nos if no.reason is reason]
    best = max(told, key=lambda no: (no.have, _reverse(no)), default=None)
    need = _smallest(wish)
    start = f"model {name} needs {show_bytes(_size(need))}"
    if best is None:
        return f"{start}; no node may hold it"
    where = f"{best.node} {best.device}".strip()
    if reason is Reason.NEVER_FITS:
        have = show_bytes(best.have)
        return f"model {name} needs {show_bytes(best.need)}; the largest berth is {where} with {have} even when empty"
    if best.need:
        tail = _TAILS.get(reason, "")
        return f"model {name} needs {show_bytes(best.need)}; the largest free berth is {where} with {show_bytes(best.have)}{tail}"
    return f"{start}; {where}: {best.message}"


_TAILS = {
    Reason.BUSY: ", the rest is held by runners in use",
    Reason.LOAD_IN_PROGRESS: ", the rest is held by loads under way",
    Reason.ONLY_PINNED: ", the rest is held by pinned models",
    Reason.MEMORY: ", the rest is used by programs outside Berth",
    Reason.HOST_MEMORY: " of host memory",
}


def _reverse(no: PlaceNo) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in no.node)


def _smallest(wish: Wish) -> Need:
    fitting = [n for n in wish.model.needs if wish.model.device != "cpu" or not n.gpus]
    return fitting[0] if fitting else wish.model.needs[0]


def _size(need: Need) -> int:
    return sum(need.gpus) or int(need.host)
