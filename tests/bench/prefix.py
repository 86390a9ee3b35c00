"""How many prompt tokens need not be read again because a conversation's turns meet on one runner?

Prints ``ratio gateway-prefix VALUE goal GOAL``: tokens that the engines read when requests go by free slots
only, over those that they read when requests go by prefix as well. The gateway's own queue decides; engines are
played: each answers in slots, keeps the conversations that it read last, and reads only what is new
of one that it still has. Time is played too, so the figure is the same on any machine.
"""

import heapq
import random
from collections import OrderedDict
from dataclasses import dataclass, field

from berth.gateway.queueing import Queue, Send

RUNNERS, SLOTS, KEPT = 4, 4, 24
"""Runners of the model, requests at once of each, conversations whose state each keeps."""
TALKS, TURNS = 48, 12
ASKED, ANSWERED, SYSTEM = 60, 240, 800
"""Tokens of a question, an answer, and of the system prompt."""
READ_PER_S, WRITE_PER_S, THINK_S = 1500.0, 40.0, 25.0
GOAL = 2.0


@dataclass
class Engine:
    """What it still has of each conversation: tokens, by conversation, last used last."""

    kept: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def read(self, talk: int, tokens: int) -> int:
        """Tokens that have to be read of a prompt so long."""
        known = self.kept.pop(talk, 0)
        self.kept[talk] = tokens + ANSWERED
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return tokens - min(known, tokens)


def played(*, by_prefix: bool, seed: int) -> tuple[int, float]:
    """Prompt tokens read, and the mean wait for the first token in seconds, of the same conversations."""
    chance = random.Random(seed)
    queue = Queue(10_000)
    engines = {f"runner-{n}": Engine() for n in range(RUNNERS)}
    for name in engines:
        queue.runner_up(name, SLOTS)
    events = [(chance.uniform(0, 60), talk, 0, "asks") for talk in range(TALKS)]
    heapq.heapify(events)
    arrived: dict[int, float] = {}
    read, waited = 0, 0.0
    while events:
        now, talk, turn, what = heapq.heappop(events)
        ticket = talk * TURNS + turn
        if what == "asks":
            arrived[ticket] = now
            prefix = random.Random(talk).getrandbits(64)
            effects = queue.arrive(ticket, prefix if by_prefix else None)
        else:
            effects = queue.leave(ticket)
            if turn + 1 < TURNS:
                later = now + chance.expovariate(1 / THINK_S)
                heapq.heappush(events, (later, talk, turn + 1, "asks"))
        for effect in effects:
            assert isinstance(effect, Send)
            of, at = divmod(effect.ticket, TURNS)
            prompt = SYSTEM + ASKED + at * (ASKED + ANSWERED)
            anew = engines[effect.runner].read(of, prompt)
            read += anew
            waited += now - arrived[effect.ticket] + anew / READ_PER_S
            took = anew / READ_PER_S + ANSWERED / WRITE_PER_S
            heapq.heappush(events, (now + took, of, at, "ends"))
    return read, waited / (TALKS * TURNS)


def main() -> None:
    plain = [played(by_prefix=False, seed=seed) for seed in range(3)]
    kin = [played(by_prefix=True, seed=seed) for seed in range(3)]
    for name, runs in (("free slots", plain), ("prefix", kin)):
        tokens, first = (sum(run[at] for run in runs) / len(runs) for at in (0, 1))
        print(
            f"# by {name}: {tokens / (TALKS * TURNS):.0f} tokens read a request, first token {first:.2f} s"
        )
    value = sum(run[0] for run in plain) / sum(run[0] for run in kin)
    print(f"ratio gateway-prefix {value:.2f} goal {GOAL}")


if __name__ == "__main__":
    main()
