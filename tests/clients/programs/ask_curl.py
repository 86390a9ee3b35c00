"""curl: one chat. Arguments: address, model, ``stream`` or ``whole``."""

import json
import subprocess
import sys

base, model, mode = sys.argv[1:]
ask = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": mode == "stream"}
command = [
    "curl",
    "-sN",
    "-w",
    "\n%{http_code}",
    f"{base}/v1/chat/completions",
    "-d",
    json.dumps(ask),
]
done = subprocess.run(command, capture_output=True, text=True, check=False)
body, _, status = done.stdout.rpartition("\n")
frames = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
answers = [json.loads(frame) for frame in frames if frame != "[DONE]"] or [json.loads(body)]
text, error = "", None
for answer in answers:
    if "error" in answer:
        kind = f"status {status}, exit {done.returncode}"
        error = {"class": kind, "code": answer["error"]["code"], "text": answer["error"]["message"]}
    for choice in answer.get("choices", []):
        text += choice.get("delta", choice.get("message", {})).get("content") or ""
print(json.dumps({"text": text, "error": error}))
