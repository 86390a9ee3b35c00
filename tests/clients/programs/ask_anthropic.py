"""Anthropic's Python SDK: one message. Arguments: address, model, ``stream`` or ``whole``."""

import json
import sys

import anthropic

base, model, mode = sys.argv[1:]
client = anthropic.Anthropic(base_url=base, api_key="sk-x")
ask = {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
text, error = "", None
try:
    if mode == "stream":
        with client.messages.stream(**ask) as stream:
            for piece in stream.text_stream:
                text += piece
            stream.get_final_message()
    else:
        text = client.messages.create(**ask).content[0].text
except Exception as err:
    body = getattr(err, "body", None)
    inner = body.get("error") if isinstance(body, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    error = {"class": type(err).__name__, "code": code, "text": str(err)}
print(json.dumps({"text": text, "error": error}))
