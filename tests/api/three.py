"""Three gateways beside each other, and one request to one of them: what did it bring?"""

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from api.bay import Bay, chat, words
from cluster import ports

TOKENS = 8
WHOLE = "".join(f"word{n} " for n in range(TOKENS))


class Gateways:
    """Three gateways beside the one that the other tests share, each behind a port of its own."""

    def __init__(self, bay: Bay) -> None:
        self.bay = bay
        self.ports = dict(zip("abc", ports.free(3), strict=True))

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def program(self, name: str) -> str:
        return f"gateway-{self.bay.name}-{name}"

    def start(self, name: str, **env: str) -> None:
        given = {"BERTH_PORT": str(self.ports[name]), "BERTH_GATEWAY_GRACE": "1s", **env}
        self.bay.stack.start_program("gateway", suffix=f"-{self.bay.name}-{name}", env=given)

    async def ready(self, name: str) -> None:
        await self.bay.until(f"gateway {name} is ready", lambda: self.is_ready(name))

    def is_ready(self, name: str) -> bool:
        """What the Service asks before it sends anything."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url(name)}/readyz", timeout=2).status_code == 200
        return False


@contextmanager
def three_gateways(bay: Bay, **of_c: str) -> Iterator[Gateways]:
    gateways = Gateways(bay)
    try:
        for name in "abc":
            gateways.start(name, **(of_c if name == "c" else {}))
        yield gateways
    finally:
        for name in "abc":
            bay.stack.plane.stop(gateways.program(name))


async def ask_one(client: httpx.AsyncClient, url: str, model: str, *, stream: bool) -> str:
    """``right``, the code of an error of the contract, ``refused`` or ``broken``; else it fails."""
    path = f"{url}/v1/chat/completions"
    text, frames = b"", []
    try:
        async with client.stream("POST", path, json=chat(model, stream=stream)) as answer:
            status = answer.status_code
            async for piece in answer.aiter_bytes():
                text += piece
    except httpx.ConnectError:
        return "refused"
    except httpx.TransportError:
        is_told = stream and b'"code":"runner_died"' in text
        return "runner_died" if is_told else "broken"
    if status == 200 and stream:
        frames = [_frame(line) for line in text.decode().splitlines() if line.startswith("data: ")]
        if frames[-1] == "[DONE]":
            assert words(frames) == WHOLE
            return "right"
        return str(frames[-1]["error"]["code"])
    body = json.loads(text)
    if status == 200:
        assert body["choices"][0]["message"]["content"] == WHOLE
        return "right"
    return str(body["error"]["code"])


def _frame(line: str) -> Any:
    data = line.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)
