"""Has a draining runner come to rest? Since when, and under which order was that seen?"""

from dataclasses import dataclass

from berth.agent.health import Look


@dataclass(frozen=True)
class Rest:
    """``since`` is the agent's wall clock; ``order`` the drain's own ``since``, as a name of it."""

    since: float
    order: str


def next_rest(
    rest: Rest | None, look: Look | None, *, order: str, was_ready: bool, ended: bool, now: float
) -> Rest | None:
    """The rest after one more look under a drain order; None: not at rest.

    1. A runner whose engine has ended has nothing in hand.
    2. One that was never ready was never sent anything: a load may be called off.
    3. One that says nothing is in hand is at rest; one that says otherwise, or nothing, is not.
    4. A new order starts the rest anew: gateways may have sent between the two.
    """
    if not (ended or _is_at_rest(look, was_ready=was_ready)):
        return None
    if rest is not None and rest.order == order:
        return rest
    return Rest(since=now, order=order)


def _is_at_rest(look: Look | None, *, was_ready: bool) -> bool:
    if look is None:
        return not was_ready
    if look.busy is not None:
        return look.busy == 0
    return not was_ready and not look.healthy
