"""Writes the table of docs/reference/clients.md: every client in every situation.

``PYTHONPATH=tests python -m clients --python DIR --node DIR/node_modules [--write]``, after
``uv pip install --target DIR openai anthropic langchain-openai litellm`` and ``npm install openai``.
"""

import argparse
import asyncio
import json
from importlib.metadata import distributions
from pathlib import Path

from clients.situations import CLIENTS, SITUATIONS, Client, Installed, outcome

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/clients.md"


async def rows(installed: Installed) -> list[str]:
    """One row for each client; one that is not installed says so."""
    found = []
    for client in CLIENTS:
        if installed.command(client) is None:
            found.append(f"| {client.name} | not installed |" + " |" * (len(SITUATIONS) - 1))
            continue
        cells = [
            (await outcome(client, play, mode, installed)).cell for _, play, mode in SITUATIONS
        ]
        found.append(
            f"| {f'{client.name} {version(client, installed)}'.strip()} | {' | '.join(cells)} |"
        )
        print(found[-1], flush=True)
    return found


def version(client: Client, installed: Installed) -> str:
    """Of the package that was tried."""
    if client.program.endswith(".mjs") and installed.node is not None:
        text = (installed.node / client.package / "package.json").read_text()
        return str(json.loads(text)["version"])
    name = client.package.replace("_", "-")
    for package in distributions(path=[str(installed.python)]) if installed.python else ():
        if package.metadata["Name"].replace("_", "-") == name:
            return package.version
    return ""


def page(table: list[str]) -> str:
    """The page with this table."""
    heads = ["client", *(name for name, _, _ in SITUATIONS)]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *table]
    before, _, rest = PAGE.read_text().partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end -->\n")
    return before + "<!-- table -->\n" + "\n".join(lines) + "\n<!-- end -->\n" + after


def main() -> None:
    """Try all, print the table, write it when asked to."""
    parser = argparse.ArgumentParser(prog="python -m clients", description=__doc__)
    parser.add_argument("--python", type=Path, help="folder of `uv pip install --target`")
    parser.add_argument("--node", type=Path, help="node_modules")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    options = parser.parse_args()
    text = page(asyncio.run(rows(Installed(options.python, options.node))))
    if options.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
