"""Is every answer right, or an error that the contract names, while everything goes wrong at once? (C3, C12, X7)"""

import pytest

from api.bay import Bay
from api.chaos import KINDS, play

REQUESTS = 300
"""`python -m api.chaos` asks 10,000."""


@pytest.mark.timeout(300)
def test_every_answer_is_right_or_an_error_of_the_contract(bay: Bay) -> None:
    chaos = play(bay, REQUESTS, seconds=35)
    print(dict(chaos.done), dict(chaos.counts))
    assert set(chaos.counts) <= KINDS
    assert chaos.counts.total() > 50
    assert chaos.counts["right"] > 0.5 * chaos.counts.total()
    assert chaos.done["runners killed"] > 0
    assert chaos.done["gateways rolled"] > 0
    assert chaos.done["models loaded"] > 2
