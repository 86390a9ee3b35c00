"""Open WebUI's calls: the list of models, then one chat. Arguments: address, model, ``stream`` or ``whole``.

The program itself is a web application with a database, so its calls are played, as its backend makes them (its
`routers/openai.py`): aiohttp, ten seconds for the list, five minutes for an answer, usage asked for in streams, and
whether an answer is a stream told by its Content-Type.
"""

import asyncio
import json
import sys
from typing import Any

import aiohttp

LIST_S, ANSWER_S = 10, 300
HEADERS = {
    "Authorization": "Bearer none",
    "X-OpenWebUI-User-Name": "A%20User",
    "X-OpenWebUI-User-Id": "1",
    "X-OpenWebUI-User-Role": "user",
    "X-OpenWebUI-Chat-Id": "2",
}


def session(seconds: float) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        trust_env=True, timeout=aiohttp.ClientTimeout(total=seconds), read_bufsize=4 << 20
    )


async def listed(base: str, model: str) -> bool:
    """A model that the list leaves out cannot be chosen."""
    async with session(LIST_S) as web, web.get(f"{base}/v1/models", headers=HEADERS) as answer:
        return model in [row["id"] for row in (await answer.json())["data"]]


async def frames(answer: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    """What of a stream could be read before its end, however it ended."""
    whole = b""
    try:
        async for piece in answer.content.iter_any():
            whole += piece
    except aiohttp.ClientError:
        pass
    lines = [line[6:] for line in whole.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def main(base: str, model: str, mode: str) -> None:
    assert await listed(base, model), "the model is not in the list"
    ask: dict[str, Any] = {
        "stream": mode == "stream",
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "reasoning": {"effort": "low"},
    }
    if mode == "stream":
        ask["stream_options"] = {"include_usage": True}
    text, error = "", None
    async with session(ANSWER_S) as web:
        headers = {**HEADERS, "Content-Type": "application/json"}
        url = f"{base}/v1/chat/completions"
        async with web.post(url, data=json.dumps(ask), headers=headers) as answer:
            is_stream = "text/event-stream" in answer.headers.get("Content-Type", "")
            for said in await frames(answer) if is_stream else [await answer.json()]:
                if "error" in said:
                    what = said["error"]
                    kind = f"status {answer.status}"
                    error = {"class": kind, "code": what["code"], "text": what["message"]}
                for choice in said.get("choices", []):
                    part = choice.get("delta" if is_stream else "message", {})
                    text += part.get("content") or ""
    print(json.dumps({"text": text, "error": error}))


asyncio.run(main(*sys.argv[1:]))
