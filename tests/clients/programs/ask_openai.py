"""OpenAI's Python SDK: one chat. Arguments: address, model, ``stream`` or ``whole``."""

import json
import sys

import openai

base, model, mode = sys.argv[1:]
client = openai.OpenAI(base_url=f"{base}/v1", api_key="sk-x")
ask = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
text, error = "", None
try:
    if mode == "stream":
        for chunk in client.chat.completions.create(**ask, stream=True):
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    else:
        text = client.chat.completions.create(**ask).choices[0].message.content
except openai.OpenAIError as err:
    error = {"class": type(err).__name__, "code": getattr(err, "code", None), "text": str(err)}
print(json.dumps({"text": text, "error": error}))
