"""LangChain's ChatOpenAI: one chat. Arguments: address, model, ``stream`` or ``whole``."""

import json
import sys

from langchain_openai import ChatOpenAI

base, model, mode = sys.argv[1:]
chat = ChatOpenAI(base_url=f"{base}/v1", api_key="sk-x", model=model)
text, error = "", None
try:
    if mode == "stream":
        for chunk in chat.stream("hi"):
            text += str(chunk.content)
    else:
        text = str(chat.invoke("hi").content)
except Exception as err:
    error = {"class": type(err).__name__, "code": getattr(err, "code", None), "text": str(err)}
print(json.dumps({"text": text, "error": error}))
