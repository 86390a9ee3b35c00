"""A small hub and file server of our own that speaks the Hugging Face hub's protocol.

In process: ``async with Hub() as hub: hub.commit("org/name", {"model.gguf": b"…"})``.
As a program: ``PYTHONPATH=tests python -m hub --root DIR --host 127.0.0.1 --port 8000``.
"""

from hub.faults import Faults
from hub.server import Asked, Hub

__all__ = ["Asked", "Faults", "Hub"]
