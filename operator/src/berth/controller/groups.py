"""How do the Runners of a group count as one?

Each member is a Runner of its own on its own node, so that each node's agent fetches, admits, measures
and frees its part as it does for any other; what the planner decides on is the head (rank 0).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from berth.controller.observe_runners import Entry
from berth.planner.state import Runner, Stage
from berth.reasons import Reason

_ENDED = (Stage.FAILED, Stage.LOST)


def as_groups(found: Sequence[Entry], runners: Sequence[Runner]) -> tuple[Runner, ...]:
    """The ledger with groups: members point to their head, which tells for all of them.

    1. One of them failed or is lost, ends without the head, or is missing: the group has failed.
    2. Its files are there, and it is admitted, when that is so for every member.
    3. A member whose head is gone is leaving; whose pod has the head still holds its bytes.
    """
    heads, parts = _members(found)
    if not heads and not parts:
        return tuple(runners)
    by_uid = {runner.uid: runner for runner in runners}
    changed: dict[str, Runner] = {}
    for name, members in parts.items():
        head = heads.get(name)
        uid = head.uid if head is not None else name
        for entry in members:
            changed[entry.uid] = replace(by_uid[entry.uid], part_of=uid)
        if head is not None:
            others = [by_uid[entry.uid] for entry in members]
            changed[uid] = _as_one(by_uid[uid], others, size=_size(head))
    for name, head in heads.items():
        if name not in parts and head.runner is not None and _size(head) > 1:
            changed[head.uid] = _as_one(by_uid[head.uid], [], size=_size(head))
    return tuple(changed.get(runner.uid, runner) for runner in runners)


def _members(found: Iterable[Entry]) -> tuple[dict[str, Entry], dict[str, list[Entry]]]:
    """Heads, and the other members, by the head's namespace and name."""
    heads: dict[str, Entry] = {}
    parts: dict[str, list[Entry]] = {}
    for entry in found:
        group = entry.runner.spec.group if entry.runner is not None else None
        if entry.runner is None or group is None:
            continue
        name = f"{entry.runner.metadata.namespace}/{group.head}"
        if group.rank:
            parts.setdefault(name, []).append(entry)
        else:
            heads[name] = entry
    return heads, parts


def _size(head: Entry) -> int:
    group = head.runner.spec.group if head.runner is not None else None
    return group.size if group is not None else 1


def _as_one(head: Runner, parts: list[Runner], *, size: int) -> Runner:
    if head.stage is Stage.STOPPING or head.stage in _ENDED:
        return head
    ended = next((part for part in parts if part.stage in _ENDED), None)
    if ended is not None:
        reason = ended.exit_reason or Reason.NODE_LOST
        message = f"member {ended.name} on {ended.node}: {ended.exit_message or reason}"
        return replace(head, stage=ended.stage, exit_reason=reason, exit_message=message)
    gone = size - 1 - sum(part.stage is not Stage.STOPPING for part in parts)
    if gone:
        message = f"{gone} of the {size} members are gone"
        reason = Reason.INTERRUPTED
        return replace(head, stage=Stage.FAILED, exit_reason=reason, exit_message=message)
    whole = (head, *parts)
    until = [member.admitted_until for member in whole if member.admitted_until is not None]
    refused = next((member for member in whole if member.admission_refused is not None), None)
    return replace(
        head,
        fetched=all(member.fetched for member in whole),
        admitted_until=min(until) if len(until) == size else None,
        admission_refused=refused.admission_refused if refused else None,
        admission_message=refused.admission_message if refused else "",
    )
