"""What does an engine that speaks Anthropic's messages answer? Three words, or fewer when it dies."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

WORDS = ("word0 ", "word1 ", "word2 ")


def _event(kind: str, **more: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()


def _message(content: list[dict[str, str]], stop: str | None) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 3},
    }


@contextlib.asynccontextmanager
async def serving(crash_after: int | None = None) -> AsyncIterator[int]:
    """The port of such an engine; it cuts the connection after so many words (0: before a byte)."""

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        assert request.transport is not None
        if crash_after == 0:
            request.transport.abort()
            await asyncio.sleep(60)
        if not asked.get("stream"):
            return web.json_response(
                _message([{"type": "text", "text": "".join(WORDS)}], "end_turn")
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_event("message_start", message=_message([], None)))
        block = {"type": "text", "text": ""}
        await response.write(_event("content_block_start", index=0, content_block=block))
        for number, word in enumerate(WORDS):
            if number == crash_after:
                await asyncio.sleep(0.05)
                request.transport.abort()
                await asyncio.sleep(60)
            delta = {"type": "text_delta", "text": word}
            await response.write(_event("content_block_delta", index=0, delta=delta))
        await response.write(_event("content_block_stop", index=0))
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        usage = {"input_tokens": 1, "output_tokens": 3}
        await response.write(_event("message_delta", delta=end, usage=usage))
        await response.write(_event("message_stop"))
        return response

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
