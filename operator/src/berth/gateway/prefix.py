"""Which requests begin alike, so that an engine that has read one needs to read less of the other?

Turns of one conversation do: what counts is everything up to its first message of a user, which stays when
the conversation grows. Of a text, its first kilobyte. Only asked where a model has several runners.
"""

from hashlib import blake2b

import msgspec

from berth.gateway.body import Spooled

MESSAGE_MAX = 4 << 10
TEXT_MAX = 1 << 10
_NOTHING = msgspec.Raw()


class _Said(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = _NOTHING


class _Prompt(msgspec.Struct):
    """The fields that hold what is read first, in any of the APIs."""

    system: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    messages: list[_Said] = []
    input: list[_Said] | str = ""
    prompt: msgspec.Raw = _NOTHING


_decode = msgspec.json.Decoder(_Prompt).decode


def prefix_of(body: bytes | Spooled) -> int | None:
    """64 bits; None where the body has nothing of the kind, or is too large to be looked at."""
    if isinstance(body, Spooled):
        return None
    try:
        prompt = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    parts = [
        bytes(part)[:MESSAGE_MAX] for part in (prompt.system, prompt.instructions, prompt.tools)
    ]
    if isinstance(prompt.input, str):
        parts.append(prompt.input.encode("utf-8", "surrogatepass")[:TEXT_MAX])
    parts.append(bytes(prompt.prompt)[:TEXT_MAX])
    opening = _until_user(prompt.messages or prompt.input)
    parts += [said.role.encode() + bytes(said.content)[:MESSAGE_MAX] for said in opening]
    whole = b"\0".join(parts)
    if not whole.strip(b"\0"):
        return None
    return int.from_bytes(blake2b(whole, digest_size=8).digest(), "big")


def _until_user(messages: list[_Said] | str) -> list[_Said]:
    if isinstance(messages, str):
        return []
    for at, said in enumerate(messages):
        if said.role == "user":
            return messages[: at + 1]
    return messages[:2]
