"""LiteLLM as a client: one chat. Arguments: address, model, ``stream`` or ``whole``."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

base, model, mode = sys.argv[1:]
litellm.suppress_debug_info = True
ask = {
    "model": f"openai/{model}",
    "api_base": f"{base}/v1",
    "api_key": "sk-x",
    "messages": [{"role": "user", "content": "hi"}],
}
text, error = "", None
try:
    if mode == "stream":
        for chunk in litellm.completion(**ask, stream=True):
            text += chunk.choices[0].delta.content or ""
    else:
        text = litellm.completion(**ask).choices[0].message.content
except Exception as err:
    error = {"class": type(err).__name__, "code": getattr(err, "code", None), "text": str(err)}
print(json.dumps({"text": text, "error": error}))
