"""Does our hub speak the protocol? Asked by httpx here, and by the real client where it is there."""

import asyncio
import hashlib
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from hub import Hub

CONTENT = bytes(range(256)) * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
async def hub():
    async with Hub() as hub:
        hub.commit("org/name", {"model.gguf": CONTENT, "config.json": b"{}", "sub/a.txt": b"a"})
        yield hub


async def get(url, **options):
    async with httpx.AsyncClient() as client:
        return await client.get(url, **options)


async def test_an_lfs_file_is_a_redirect_that_tells_commit_digest_and_size(hub):
    answer = await get(hub.resolve_url("org/name", "model.gguf"))
    assert answer.status_code == 302
    assert answer.headers["X-Linked-Etag"] == f'"{SHA}"'
    assert answer.headers["X-Linked-Size"] == str(len(CONTENT))
    assert answer.headers["X-Repo-Commit"] == hub.repos["org/name"].branches["main"]
    assert answer.headers["Location"].startswith("http://127.0.0.2:")
    whole = await get(answer.headers["Location"])
    assert whole.content == CONTENT


@pytest.mark.parametrize(
    ("asked", "status", "content", "told"),
    [
        ("bytes=10-19", 206, CONTENT[10:20], f"bytes 10-19/{len(CONTENT)}"),
        ("bytes=255990-", 206, CONTENT[255990:], f"bytes 255990-255999/{len(CONTENT)}"),
        ("bytes=-5", 206, CONTENT[-5:], f"bytes 255995-255999/{len(CONTENT)}"),
        ("bytes=256000-", 416, b"", f"bytes */{len(CONTENT)}"),
    ],
)
async def test_ranges(hub, asked, status, content, told):
    hub.plain["f"] = CONTENT
    answer = await get(hub.plain_url("f"), headers={"Range": asked})
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers["Content-Range"] == told


async def test_a_gated_repo_wants_the_right_token(hub):
    hub.commit("org/gated", {"model.gguf": CONTENT}, gated=True, tokens={"right"})
    url = hub.resolve_url("org/gated", "model.gguf")
    codes = [
        (await get(url, headers=headers)).status_code
        for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Bearer right"})
    ]
    assert codes == [401, 403, 302]


async def test_a_branch_moves_and_a_commit_stays(hub):
    first = hub.repos["org/name"].branches["main"]
    second = hub.commit("org/name", {"config.json": b"[]"})
    assert first != second
    for revision, text in ((first, "{}"), (second, "[]"), ("main", "[]")):
        answer = await get(hub.resolve_url("org/name", "config.json", revision))
        assert answer.text == text
    tree = await get(f"{hub.url}/api/models/org/name/tree/{first}")
    assert [entry["path"] for entry in tree.json()] == ["sub", "config.json", "model.gguf"]


async def test_the_real_client_lists_and_downloads(hub, tmp_path, monkeypatch):
    client = pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    api = client.HfApi(endpoint=hub.url)
    hub.commit("org/gated", {"model.gguf": CONTENT}, gated=True, tokens={"right"})

    def ask():
        info = api.model_info("org/name", files_metadata=True)
        sizes = {s.rfilename: (s.size, s.lfs.sha256 if s.lfs else None) for s in info.siblings}
        tree = [f.path for f in api.list_repo_tree("org/name", recursive=True)]
        refs = [b.name for b in api.list_repo_refs("org/name").branches]
        infos = api.get_paths_info("org/name", ["model.gguf"])
        path = api.hf_hub_download("org/name", "model.gguf", cache_dir=tmp_path)
        whole = api.snapshot_download("org/name", cache_dir=tmp_path / "all")
        return info.sha, sizes, tree, refs, infos[0].lfs.sha256, path, whole

    sha, sizes, tree, refs, digest, path, whole = await asyncio.to_thread(ask)
    assert sha == hub.repos["org/name"].branches["main"]
    assert sizes["model.gguf"] == (len(CONTENT), SHA)
    assert sizes["config.json"] == (2, None)
    assert sorted(tree) == ["config.json", "model.gguf", "sub/a.txt"]
    assert (refs, digest) == (["main"], SHA)
    assert Path(path).read_bytes() == CONTENT
    assert (Path(whole) / "sub" / "a.txt").read_bytes() == b"a"

    from huggingface_hub import errors

    def fetch(repo, name, revision="main", token=False):
        return api.hf_hub_download(
            repo, name, revision=revision, token=token, cache_dir=tmp_path / "errors"
        )

    for arguments, kind in (
        (("org/none", "x"), errors.RepositoryNotFoundError),
        (("org/name", "none.gguf"), errors.EntryNotFoundError),
        (("org/name", "model.gguf", "nobranch"), errors.RevisionNotFoundError),
        (("org/gated", "model.gguf"), errors.GatedRepoError),
        (("org/gated", "model.gguf", "main", "wrong"), errors.GatedRepoError),
    ):
        with pytest.raises(kind):
            await asyncio.to_thread(fetch, *arguments)
    got = await asyncio.to_thread(fetch, "org/gated", "model.gguf", "main", "right")
    assert Path(got).read_bytes() == CONTENT
    assert all(asked.authorization is None for asked in hub.asked if asked.where == "cdn")


async def test_as_a_program_it_serves_a_folder_and_huge_sparse_files(tmp_path):
    repo = tmp_path / "org" / "big"
    repo.mkdir(parents=True)
    with (repo / "model.gguf").open("wb") as file:
        file.write(b"GGUF")
        file.truncate(40 << 30)
    (repo / "model.gguf.sha256").write_text("0" * 64)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "plain.bin").write_bytes(CONTENT)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hub", "--root", tmp_path, "--port", "0",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        line = (await process.stdout.readline()).decode()
        url = line.split()[1]
        assert "org/big" in line
        async with httpx.AsyncClient(follow_redirects=True) as client:
            answer = await client.get(
                f"{url}/org/big/resolve/main/model.gguf", headers={"Range": "bytes=0-3"}
            )
            assert answer.content == b"GGUF"
            assert answer.headers["Content-Range"] == f"bytes 0-3/{40 << 30}"
            assert (await client.get(f"{url}/files/plain.bin")).content == CONTENT
            assert (await client.get(f"{url}/files/../org/big/model.gguf")).status_code == 404
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
