"""What does a browser show while a model is away? One page without a script that looks again by itself."""

from html import escape

from berth.gateway.catalog import Served
from berth.gateway.inbound import Request
from berth.reasons import State

LOOK_AGAIN_S = 5
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Retry-After": str(LOOK_AGAIN_S),
    # The browser asks for the same address again: once the model is back, that is what it shows.
    "Refresh": str(LOOK_AGAIN_S),
}
_WORDS = {
    State.DOWN: "is not loaded; the first request for it loads it",
    State.WAITING: "waits for room",
    State.FETCHING: "is being fetched",
    State.STARTING: "is starting",
    State.STOPPING: "is being unloaded",
    State.HELD: "is held",
    State.FAILED: "could not be loaded",
}


def is_browser(request: Request) -> bool:
    """Somebody who reads pages: programs ask for JSON, or for anything."""
    return "text/html" in request.header(b"accept")


def page(served: Served) -> bytes:
    """The facts that `error.berth` gives to programs."""
    facts = {**served.facts(), "usual start": f"{served.load_time} s"}
    rows = "".join(
        f"<tr><th>{escape(name)}<td>{escape(str(value))}"
        for name, value in facts.items()
        if isinstance(value, str)
    )
    sentence = f"{served.id} {_WORDS.get(served.state, 'is away')}."
    return _PAGE.format(sentence=escape(sentence), rows=rows, seconds=LOOK_AGAIN_S).encode()


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{sentence}</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>body{{font:1rem/1.5 system-ui;margin:3rem auto;max-width:40rem;padding:0 1rem}}
th{{text-align:left;padding-right:1rem;font-weight:normal;opacity:.7;vertical-align:top}}</style>
<h1>{sentence}</h1><table>{rows}</table>
<p>This page looks again every {seconds} seconds and opens what was asked for.
"""
