"""How is a condition written so that its transition time means something?"""

from collections.abc import Iterable
from typing import Literal

from berth.api.meta import Condition, timestamp
from berth.reasons import ConditionType

Truth = Literal["True", "False", "Unknown"]
_LONGEST = 1024


class ConditionSheet:
    """The conditions of one object for one pass. An unchanged status keeps its transition time."""

    def __init__(self, before: Iterable[Condition], *, generation: int, now: float) -> None:
        self._before = {condition.type: condition for condition in before}
        self._generation = generation
        self._now = timestamp(now)
        self._after: list[Condition] = []

    def put(self, kind: ConditionType, status: Truth, reason: str, message: str = "") -> None:
        """State one condition. ``reason`` is an enum member; ``message`` one sentence."""
        known = self._before.get(kind)
        kept = known is not None and known.status == status
        self._after.append(
            Condition(
                type=kind,
                status=status,
                reason=str(reason),
                message=message[:_LONGEST],
                observed_generation=self._generation,
                last_transition_time=known.last_transition_time if known and kept else self._now,
            )
        )

    def had(self, kind: ConditionType) -> bool:
        """Whether the status before said anything of this kind."""
        return kind in self._before

    def keep(self, kind: ConditionType) -> None:
        """State again what was said before; used where this pass has nothing new to say."""
        known = self._before.get(kind)
        if known is not None:
            self._after.append(known)

    def said(self) -> list[Condition]:
        """All of them, in the order in which they were stated."""
        return self._after
