"""Is every answer right, or an error that the contract names, while everything goes wrong at once? (C3, C12, X7)"""

from api.bay import Bay
from api.chaos import CLIENTS, KINDS, play

REQUESTS = 600
"""`python -m api.chaos` asks 10,000."""


def test_every_answer_is_right_or_an_error_of_the_contract(bay: Bay) -> None:
    chaos = play(bay, REQUESTS, seconds=90)
    print(dict(chaos.done), dict(chaos.counts))
    assert set(chaos.counts) <= KINDS
    assert chaos.counts.total() >= CLIENTS
    assert chaos.counts["right"] > 0.7 * chaos.counts.total()
    assert chaos.done["runners killed"] > 0
    assert chaos.done["gateways rolled"] > 0
    assert chaos.done["models loaded"] > 2
