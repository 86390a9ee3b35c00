"""What is in the pages: fenced blocks, command lines, objects of ours."""

import re
import shlex
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language):
    """Every fenced block of a language, with its page."""
    for page in PAGES:
        for found, text in FENCE.findall(page.read_text()):
            if found == language:
                yield page.relative_to(ROOT), text


def commands():
    """Every command line with a name: continued lines joined, comments dropped."""
    for page, text in blocks("sh"):
        # What goes into a file is no command.
        shell = re.sub(r"<<'END'\n.*?^END$", "", text, flags=re.MULTILINE | re.DOTALL)
        for line in shell.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            # Where the output goes is the shell's matter.
            words = words[: words.index(">")] if ">" in words else words
            if words:
                yield f"{page}: {' '.join(words)[:60]}", words


def objects():
    """Every object of ours in the pages and the examples, with a name."""
    files = [(path.relative_to(ROOT), path.read_text()) for path in (ROOT / "docs").rglob("*.yaml")]
    for page, text in [*blocks("yaml"), *files]:
        for body in yaml.safe_load_all(text):
            if str(body.get("apiVersion", "")).startswith("berth.dev/"):
                yield f"{page}: {body['kind']} {body['metadata']['name']}", body
