"""Do clients that people use make the right thing of a model that is cold, held, failing or dying?

The packages are not dependencies of the project: where BERTH_TEST_CLIENTS names a folder with
``python`` (of ``uv pip install --target``) and ``node_modules``, each client found there is tried,
the others are skipped by name. curl is tried wherever it is, and so are Open WebUI's calls.
"""

import os
from pathlib import Path

import pytest

from clients.situations import (
    CLIENTS,
    SITUATIONS,
    TEXT,
    Client,
    Installed,
    Play,
    cold,
    dying_early,
    outcome,
)

_folder = os.environ.get("BERTH_TEST_CLIENTS")
INSTALLED = Installed(
    Path(_folder) / "python" if _folder else None,
    Path(_folder) / "node_modules" if _folder else None,
)


@pytest.mark.parametrize("client", [pytest.param(c, id=c.name) for c in CLIENTS])
@pytest.mark.parametrize(("play", "mode"), [pytest.param(p, m, id=n) for n, p, m in SITUATIONS])
async def test_a_client_gets_the_answer_or_an_error_and_never_half_an_answer(
    client: Client, play: Play, mode: str
) -> None:
    if INSTALLED.command(client) is None:
        pytest.skip(f"{client.name} is not installed: see tests/clients/test_clients.py")
    got = await outcome(client, play, mode, INSTALLED)
    if play in (cold, dying_early):
        assert (got.text, got.error) == (TEXT, None)
        return
    assert got.error is not None, "an answer that is not whole must not look whole"
    assert "no word" not in got.cell
