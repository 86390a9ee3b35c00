"""What does a light, steady load of requests with known answers get from a node where things die?"""

import asyncio
import collections
import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from berth.gateway.errors import BY_CODE

PROMPTS = tuple(
    f"Write one sentence about {thing}."
    for thing in ("a harbour", "the moon", "old bread", "a violin", "winter", "seven goats")
)
STRANGE = "not of the contract"
PATIENCE_S = 180.0
"""Who has no answer by then counts as lost."""
RIGHT, WRONG = "right", "wrong"
REFUSED = "no connection"
NOTHING = "nothing"
"""Neither a byte of an answer nor an error, though the request was made."""
CUT, UNSAID = "cut short", "cut, unsaid"
"""A body shorter than its head says; a stream that ends early and does not say so."""


@dataclass
class Answer:
    """One request as its client saw it. Times are of the monotonic clock."""

    model: str
    stream: bool
    prompt: str
    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    """When the first byte of the engine's own came."""
    ended: float = 0.0
    kind: str = ""
    text: str = ""
    error: dict[str, Any] | None = None
    is_whole: bool = False


class Load:
    """A streaming and a plain client for each model; a model's gate keeps them from asking."""

    def __init__(self, endpoint: str, models: Iterable[str], seed: int) -> None:
        self.models = tuple(models)
        self.answers: list[Answer] = []
        self.under_way: list[Answer] = []
        self.gates = {model: asyncio.Event() for model in self.models}
        self.is_over = False
        self._expected: dict[tuple[str, bool], str] = {}
        self._dice = random.Random(seed)
        # A connection of its own for each request: one that a dead gateway held is no request lost.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(base_url=endpoint, timeout=PATIENCE_S, limits=limits)

    async def learn(self) -> None:
        """The first quiet answers are the right ones; each other model must give one of them too."""
        first, *others = self.models
        for prompt in PROMPTS:
            await self._learn(first, prompt)
        for model in others:
            await self._learn(model, PROMPTS[0])
        assert len(set(self._expected.values())) * 2 > len(self._expected), "answers are alike"

    async def _learn(self, model: str, prompt: str) -> None:
        for stream in (False, True):
            answer = await self._ask(model, prompt, stream=stream)
            known = self._expected.setdefault((prompt, stream), answer.text)
            same = answer.is_whole and answer.text == known
            assert same, f"not repeatable: {answer}, not {known!r}"

    async def run(self) -> None:
        """Until it is over; whoever waits then is waited for."""
        clients = [(model, stream) for model in self.models for stream in (False, True)]
        await asyncio.gather(*(self._go_on(model, stream=stream) for model, stream in clients))
        await self._client.aclose()

    def end(self) -> None:
        self.is_over = True
        for gate in self.gates.values():
            gate.set()

    def is_talking(self, model: str) -> bool:
        """A stream of this model has begun and not ended."""
        return any(a.model == model and a.stream and a.first for a in self.under_way)

    def is_quiet(self, model: str) -> bool:
        return all(answer.model != model for answer in self.under_way)

    def served_after(self, moment: float, model: str) -> float | None:
        """When the first word of a whole, right answer came that had none before this moment."""
        firsts = (
            answer.first
            for answer in self.answers[-50:]
            if answer.model == model and answer.kind == RIGHT and answer.first
        )
        return min((first for first in firsts if first > moment), default=None)

    async def _go_on(self, model: str, *, stream: bool) -> None:
        while not self.is_over:
            await self.gates[model].wait()
            if self.is_over:
                return
            answer = await self._ask(model, self._dice.choice(PROMPTS), stream=stream)
            answer.kind = self._kind_of(answer)
            self.answers.append(answer)
            await asyncio.sleep(self._dice.uniform(0.1, 0.5))

    async def _ask(self, model: str, prompt: str, *, stream: bool) -> Answer:
        answer = Answer(model, stream, prompt)
        self.under_way.append(answer)
        body = {
            "model": model, "messages": [{"role": "user", "content": prompt}], "stream": stream,
            "max_tokens": 32 if stream else 8, "temperature": 0, "seed": 1, "ignore_eos": True,
            # What was read before must not change how the rest is computed.
            "cache_prompt": False,
        }  # fmt: skip
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                self._client.stream("POST", "/v1/chat/completions", json=body) as reply,
            ):
                await (_read_stream if _is_events(reply) else _read_whole)(reply, answer)
        except httpx.ConnectError:
            answer.kind = REFUSED
        except (httpx.TransportError, TimeoutError):
            answer.kind = NOTHING
        answer.ended = time.monotonic()
        self.under_way.remove(answer)
        return answer

    def _kind_of(self, answer: Answer) -> str:
        """What came must be right as far as it came, and every error must be in the table."""
        expected = self._expected[answer.prompt, answer.stream]
        if not expected.startswith(answer.text) or (answer.is_whole and answer.text != expected):
            return WRONG
        if answer.error is not None:
            return _code_of(answer)
        if answer.is_whole or answer.kind == REFUSED:
            return answer.kind or RIGHT
        if answer.first is None:
            return NOTHING
        return UNSAID if answer.stream else CUT


def count(answers: Iterable[Answer]) -> collections.Counter[str]:
    return collections.Counter(answer.kind for answer in answers)


def _is_events(reply: httpx.Response) -> bool:
    return str(reply.headers.get("content-type", "")).startswith("text/event-stream")


async def _read_stream(reply: httpx.Response, answer: Answer) -> None:
    async for line in reply.aiter_lines():
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            answer.is_whole = True
            continue
        frame = json.loads(data)
        if "error" in frame:
            answer.error = frame["error"] | {"status": None}
        elif "berth" not in frame:
            answer.first = answer.first or time.monotonic()
            answer.text += (frame["choices"] or [{}])[0].get("delta", {}).get("content") or ""


async def _read_whole(reply: httpx.Response, answer: Answer) -> None:
    body = b""
    async for piece in reply.aiter_bytes():
        if reply.status_code == 200:
            answer.first = answer.first or time.monotonic()
        body += piece
    said = json.loads(body)
    if reply.status_code != 200:
        answer.error = said["error"] | {"status": reply.status_code}
        return
    answer.text = said["choices"][0]["message"]["content"]
    answer.is_whole = said["model"] == answer.model


def _code_of(answer: Answer) -> str:
    """The code of an error of the table, with its status unless a stream had begun; died only in the midst."""
    assert answer.error is not None
    code, status = answer.error["code"], answer.error["status"]
    known = BY_CODE.get(code)
    is_early = code == "runner_died" and answer.first is None
    if known is None or is_early or status not in (None, known.status):
        return f"{STRANGE}: {code} {status}"
    return known.code
