"""Is a file from a misbehaving source either right, byte for byte, or an error with its reason?"""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from berth.agent.courier import Courier
from berth.agent.download import FileRef
from berth.agent.fetch_errors import (
    DiskFullError,
    HashMismatchError,
    SourceChangedError,
    SourceForbiddenError,
    SourceNotFoundError,
    SourceUnauthorizedError,
    SourceUnreachableError,
)
from berth.agent.store import Store
from berth.headers.address import SourcePolicy
from hub import Faults, Hub

SIZE = 3_000_017
CONTENT = b"GGUF" + random.Random(7).randbytes(SIZE - 4)
SHA = hashlib.sha256(CONTENT).hexdigest()
OTHER = b"GGUF" + random.Random(8).randbytes(SIZE - 4)
LOOPBACK = SourcePolicy(allow=("127.0.0.0/8",))


@pytest.fixture
async def hub():
    async with Hub() as hub:
        hub.commit("org/name", {"model.gguf": CONTENT})
        hub.plain["model.gguf"] = CONTENT
        yield hub


@pytest.fixture
async def courier():
    courier = Courier(LOOPBACK, timeouts=httpx.Timeout(2.0, read=1.0, pool=None))
    yield courier
    await courier.close()


@pytest.fixture
def store(tmp_path, courier, hub):
    return new_store(tmp_path, courier, hub)


def new_store(root, courier, hub, **options):
    settings = {"hub": hub.url, "keep_free": 0, "backoff": lambda _: 0.0} | options
    return Store(root / "store", courier, **settings)


def hub_file(hub, token=None, **changes):
    credentials = {"Authorization": f"Bearer {token}"} if token else {}
    fields = {
        "name": "model.gguf",
        "url": hub.resolve_url("org/name", "model.gguf"),
        "size": SIZE,
        "sha256": SHA,
        "credentials": credentials,
    }
    return FileRef(**(fields | changes))


def plain_file(hub, **changes):
    return FileRef(**({"name": "model.gguf", "url": hub.plain_url("model.gguf")} | changes))


def bodies(hub):
    """Requests that fetched a file, not just proved one."""
    return [a for a in hub.asked if not a.path.startswith("/org") and a.range != "bytes=0-0"]


FAULTS = [
    pytest.param({}, id="none"),
    pytest.param({"ignores_range": True}, id="ranges ignored: 200 with the whole file"),
    pytest.param({"ignores_range": True, "no_length": True}, id="whole file, no length told"),
    pytest.param({"range_from_start": True}, id="206 with bytes 0-N/N"),
    pytest.param({"wrong_total": 100}, id="206 with too large a total"),
    pytest.param({"wrong_total": -100}, id="206 with too small a total"),
    pytest.param({"cut_after": 1_200_000}, id="cut again and again"),
    pytest.param({"cut_after": 1_200_000, "cut_times": 2, "no_etag": True}, id="cut, no ETag"),
    pytest.param({"cut_after": 0, "cut_times": 3}, id="cut before the first byte"),
    pytest.param({"statuses": [500, 503, 429]}, id="unwell for a while"),
    pytest.param({"rate": 6e6}, id="slow"),
]
PARTS = [
    pytest.param(b"", id="nothing here"),
    pytest.param(CONTENT[:1_000_000], id="a part here"),
    pytest.param(CONTENT, id="all here, not verified"),
    pytest.param(CONTENT + b"more", id="more here than there is"),
    pytest.param(b"x" * 1_000_000, id="a damaged part here"),
]


async def until(what, condition):
    """Wait for a condition, with a deadline that says what it waited for."""
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail(f"waited 30 s for {what}")


def leave_part(store, key, part, etag=None):
    """What a killed agent leaves behind."""
    path = store.shelf.partials / key
    path.write_bytes(part)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path.with_name(key + ".json").write_text(json.dumps({"etag": etag, "boot": boot}))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("faults", FAULTS)
async def test_whatever_the_source_does_the_file_is_right(hub, store, faults, part):
    if part:
        leave_part(store, SHA, part)
    hub.faults.set(faults)
    blob = await store.fetch(hub_file(hub))
    assert (blob.sha256, blob.size) == (SHA, SIZE)
    assert store.shelf.path(SHA).read_bytes() == CONTENT
    assert list(store.shelf.partials.iterdir()) == []


@pytest.mark.parametrize("faults", FAULTS)
async def test_a_plain_url_without_a_promised_hash_gets_the_computed_one(hub, store, faults):
    hub.faults.set(faults)
    blob = await store.fetch(plain_file(hub))
    assert blob.sha256 == SHA


async def test_a_range_server_is_asked_only_for_what_is_missing(hub, store):
    leave_part(store, SHA, CONTENT[:1_000_000])
    await store.fetch(hub_file(hub))
    assert [asked.range for asked in bodies(hub)] == ["bytes=1000000-"]


@pytest.mark.parametrize("bare", [False, True])
async def test_a_416_of_a_complete_part_is_no_second_download(hub, store, bare):
    leave_part(store, SHA, CONTENT)
    hub.faults.bare_416 = bare
    blob = await store.fetch(hub_file(hub, size=None))
    assert blob.sha256 == SHA
    assert bodies(hub)[0].range == f"bytes={SIZE}-"
    assert (len(bodies(hub)) == 1) is not bare


@pytest.mark.parametrize(
    ("faults", "changes", "error"),
    [
        pytest.param({"corrupt_at": 2_000_000}, {}, HashMismatchError, id="a flipped byte"),
        pytest.param({}, {"sha256": "0" * 64}, SourceChangedError, id="the hub tells another hash"),
        pytest.param({}, {"size": SIZE - 1}, SourceChangedError, id="another size"),
        pytest.param(
            {"no_length": True}, {"size": SIZE - 1}, SourceChangedError, id="a longer body"
        ),
        pytest.param({"statuses": [404]}, {}, SourceNotFoundError, id="not found"),
        pytest.param({"statuses": [401]}, {}, SourceUnauthorizedError, id="unauthorized"),
        pytest.param({"statuses": [500] * 99}, {}, SourceUnreachableError, id="unwell for good"),
        pytest.param({"cut_after": 0}, {}, SourceUnreachableError, id="cut for good"),
        pytest.param({"hang_after": 0}, {}, SourceUnreachableError, id="hangs in the body"),
        pytest.param({"hangs": True}, {}, SourceUnreachableError, id="never answers"),
    ],
)
async def test_each_failure_has_its_reason_and_leaves_no_blob(
    hub, tmp_path, faults, changes, error
):
    courier = Courier(LOOPBACK, timeouts=httpx.Timeout(2.0, read=0.1, pool=None))
    store = new_store(tmp_path, courier, hub)
    hub.faults.set(faults)
    with pytest.raises(error) as caught:
        await store.fetch(hub_file(hub, **changes))
    assert caught.value.reason.value == error.__name__.removesuffix("Error")
    assert store.shelf.list_blobs() == []
    await courier.close()


async def test_a_plain_url_that_sends_the_wrong_file(hub, store):
    hub.plain["model.gguf"] = OTHER
    with pytest.raises(HashMismatchError, match="was promised"):
        await store.fetch(plain_file(hub, sha256=SHA, size=SIZE))
    assert list(store.shelf.partials.iterdir()) == []


async def test_a_file_that_changes_under_its_url_in_the_middle_starts_again(hub, store):
    hub.faults.set({"cut_after": 1_500_000, "cut_times": 1})
    task = asyncio.create_task(store.fetch(plain_file(hub)))
    await until("a first request", lambda: bodies(hub))
    hub.plain["model.gguf"] = OTHER
    blob = await task
    assert blob.sha256 == hashlib.sha256(OTHER).hexdigest()


async def test_a_file_that_changed_since_its_header_was_read(hub, store):
    with pytest.raises(SourceChangedError, match="ETag"):
        await store.fetch(plain_file(hub, etag='"of-yesterday"'))


async def test_a_part_of_an_unknown_version_is_not_trusted_without_a_hash(hub, store):
    key = "url-" + hashlib.sha256(hub.plain_url("model.gguf").encode()).hexdigest()
    leave_part(store, key, b"x" * 1000, etag=None)
    assert (await store.fetch(plain_file(hub))).sha256 == SHA


async def test_what_is_here_is_not_fetched_again_and_needs_no_source(hub, store):
    await store.fetch(hub_file(hub))
    await store.fetch(plain_file(hub))
    hub.asked.clear()
    hub.faults.set({"statuses": [500] * 9})
    for file in (hub_file(hub), plain_file(hub), plain_file(hub, size=SIZE)):
        assert (await store.fetch(file)).sha256 == SHA
    assert hub.asked == []


async def test_one_download_however_many_want_it(hub, store):
    hub.faults.rate = 6e6
    seen = [[] for _ in range(20)]
    files = [hub_file(hub) for _ in seen]
    await asyncio.gather(
        *(
            store.fetch(file, lambda done, total, rate, s=s: s.append((done, total)))
            for file, s in zip(files, seen, strict=True)
        )
    )
    assert len(bodies(hub)) == 1
    assert all(s[-1] == (SIZE, SIZE) for s in seen)
    assert all(s == sorted(s) for s in seen)


async def test_when_the_last_one_who_waits_goes_the_download_stops_and_keeps_its_bytes(hub, store):
    hub.faults.set({"hang_after": 2_000_000})
    tasks = [asyncio.create_task(store.fetch(hub_file(hub))) for _ in range(2)]
    partial = store.shelf.partials / SHA
    await until("a part", lambda: partial.exists() and partial.stat().st_size > 1_000_000)
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    assert not tasks[1].done()
    tasks[1].cancel()
    await asyncio.wait(tasks)
    kept = partial.read_bytes()
    assert len(kept) > 1_000_000
    assert CONTENT.startswith(kept)
    hub.faults.set({})
    await store.fetch(hub_file(hub))
    assert bodies(hub)[-1].range == f"bytes={len(kept)}-"


async def test_credentials_stay_with_the_hub(hub, store):
    hub.commit("org/gated", {"model.gguf": CONTENT}, gated=True, tokens={"right"})
    url = hub.resolve_url("org/gated", "model.gguf")
    for token in (None, "wrong"):
        with pytest.raises(SourceUnauthorizedError, match="tokenSecretRef"):
            await store.fetch(hub_file(hub, token, url=url))
    await store.fetch(hub_file(hub, "right", url=url))
    assert {a.authorization for a in hub.asked if a.where == "cdn"} == {None}


async def test_a_file_that_another_model_brought_is_not_handed_to_a_stranger(hub, store):
    hub.commit("org/gated", {"model.gguf": CONTENT}, gated=True, tokens={"right", "too"})
    url = hub.resolve_url("org/gated", "model.gguf")
    await store.fetch(hub_file(hub, "right", url=url))
    hub.asked.clear()
    with pytest.raises(SourceUnauthorizedError):
        await store.fetch(hub_file(hub, "wrong", url=url))
    await store.fetch(hub_file(hub, "too", url=url))
    assert bodies(hub) == []


async def test_a_server_that_only_claims_the_digest_must_send_the_file(hub, store):
    async with Hub() as liar:
        liar.commit("org/name", {"model.gguf": OTHER})
        vars(liar.blob("org/name", "model.gguf"))["sha256"] = SHA
        await store.fetch(hub_file(hub))
        with pytest.raises(HashMismatchError):
            await store.fetch(hub_file(liar))
    assert store.shelf.path(SHA).read_bytes() == CONTENT


async def test_a_stranger_that_waited_for_the_same_download_proves_it_too(hub, store):
    hub.commit("org/gated", {"model.gguf": CONTENT}, gated=True, tokens={"right"})
    url = hub.resolve_url("org/gated", "model.gguf")
    hub.faults.rate = 1e7
    results = await asyncio.gather(
        store.fetch(hub_file(hub, "right", url=url)),
        store.fetch(hub_file(hub, "wrong", url=url)),
        store.fetch(hub_file(hub)),
        return_exceptions=True,
    )
    assert results[0].sha256 == results[2].sha256 == SHA
    assert isinstance(results[1], SourceUnauthorizedError)
    assert len(bodies(hub)) == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://u:p@127.0.0.1/x", "no url"])
async def test_urls_that_no_policy_allows(store, url):
    with pytest.raises(SourceForbiddenError):
        await store.fetch(FileRef(name="x", url=url))


async def test_a_redirect_to_an_address_that_the_policy_forbids(hub, tmp_path):
    courier = Courier(SourcePolicy(allow=("127.0.0.1/32",)))
    with pytest.raises(SourceForbiddenError, match=r"127\.0\.0\.2"):
        await new_store(tmp_path, courier, hub).fetch(hub_file(hub))
    assert [a.where for a in hub.asked] == ["hub"]
    await courier.close()


async def test_a_full_disk_is_seen_before_the_first_byte(hub, tmp_path, courier):
    store = new_store(tmp_path, courier, hub, keep_free=1 << 60)
    with pytest.raises(DiskFullError, match=r"2.86 MiB are still to come"):
        await store.fetch(hub_file(hub))


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 2 MiB, less than the file."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    yield small
    subprocess.run(["umount", small], check=True)


async def test_a_disk_that_fills_up_on_the_way(hub, small_disk, courier):
    store = new_store(small_disk, courier, hub)
    store.shelf.free_bytes = lambda: 1 << 40
    with pytest.raises(DiskFullError, match="No space left"):
        await store.fetch(hub_file(hub))
    assert store.shelf.list_blobs() == []
    (small_disk / "store" / "partial" / SHA).unlink()
    hub.commit("org/tiny", {"tiny.gguf": CONTENT[:1000]})
    tiny = FileRef(name="tiny.gguf", url=hub.resolve_url("org/tiny", "tiny.gguf"))
    assert (await store.fetch(tiny)).size == 1000


async def test_a_blob_damaged_on_disk_is_never_served(hub, store, tmp_path, courier):
    await store.fetch(hub_file(hub))
    path = store.shelf.path(SHA)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    again = new_store(tmp_path, courier, hub)
    assert (await again.fetch(hub_file(hub))).sha256 == SHA
    assert path.read_bytes() == CONTENT


async def test_a_blob_without_its_mark_is_hashed_not_fetched(hub, store, tmp_path, courier):
    await store.fetch(hub_file(hub))
    (tmp_path / "store" / "marks" / f"{SHA}.json").unlink()
    hub.asked.clear()
    await new_store(tmp_path, courier, hub).fetch(hub_file(hub))
    assert hub.asked == []


async def test_shards_lie_side_by_side_under_their_own_names(hub, store):
    shards = {f"m-0000{i}-of-00002.gguf": CONTENT[:-i] for i in (1, 2)}
    hub.commit("org/split", {**shards, "sub/mmproj.gguf": OTHER})
    names = [*shards, "sub/mmproj.gguf"]
    files = [
        FileRef(name=n, url=hub.resolve_url("org/split", n), sha256=hub.blob("org/split", n).sha256)
        for n in names
    ]
    told = []
    folder = await store.provide("uid-1", files, lambda *p: told.append(p))
    assert folder == store.shelf.runners / "uid-1"
    for name in names:
        assert (folder / name).read_bytes() == hub.blob("org/split", name).content
        assert os.stat(folder / name).st_mode & 0o222 == 0
    assert await store.provide("uid-1", files) == folder
    assert told[-1][0] == sum(hub.blob("org/split", n).size for n in names)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*.gguf")) == sorted(names)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ""])
async def test_a_name_never_leaves_the_runners_folder(hub, store, name):
    with pytest.raises(SourceForbiddenError):
        await store.provide("uid-1", [hub_file(hub, name=name)])


async def test_one_file_stored_once_for_many_runners(hub, store):
    for runner in ("a", "b"):
        await store.provide(runner, [hub_file(hub)])
    inodes = {os.stat(store.shelf.runners / r / "model.gguf").st_ino for r in ("a", "b")}
    assert inodes == {store.shelf.path(SHA).stat().st_ino}


async def test_room_is_made_of_what_nobody_uses_least_recently_used_first(hub, store):
    files = {f"{i}.gguf": CONTENT[i:] for i in range(4)}
    hub.commit("org/four", files)
    blobs = [await store.fetch(FileRef(name=n, url=hub.resolve_url("org/four", n))) for n in files]
    for age, blob in zip((10, 40, 30, 20), blobs, strict=True):
        os.utime(store.shelf.root / "marks" / f"{blob.sha256}.json", (1e9 - age, 1e9 - age))
    store.links("uid", {"x": blobs[1].sha256})
    left = await store.trim(2 * SIZE)
    kept = {blob.sha256 for blob in store.shelf.list_blobs()}
    assert kept == {blobs[0].sha256, blobs[1].sha256}
    assert left <= 2 * SIZE
    store.release("uid")
    assert await store.trim(0) == 0
    assert store.shelf.list_blobs() == []


async def test_a_full_disk_takes_room_from_unused_files_but_not_from_used_ones(
    hub, store, monkeypatch
):
    hub.commit("org/two", {"used.gguf": CONTENT[1:], "unused.gguf": CONTENT[2:]})
    used, unused = (
        FileRef(name=n, url=hub.resolve_url("org/two", n)) for n in ("used.gguf", "unused.gguf")
    )
    await store.provide("uid", [used])
    await store.fetch(unused)
    room = 2 * SIZE + 100_000

    def free():
        held = sum(p.stat().st_size for p in store.shelf.blobs.iterdir())
        return room - held - sum(p.stat().st_size for p in store.shelf.partials.iterdir())

    store.shelf.free_bytes = free
    await store.fetch(hub_file(hub))
    assert {b.sha256 for b in store.shelf.list_blobs()} == {
        SHA,
        hub.blob("org/two", "used.gguf").sha256,
    }
    room = SIZE + 100_000
    store.links("other", {"x": SHA})
    with pytest.raises(DiskFullError):
        await store.fetch(unused)
    assert len(store.shelf.list_blobs()) == 2


KILLED = """
import asyncio, sys
from pathlib import Path
from berth.agent.courier import Courier
from berth.agent.download import FileRef
from berth.agent.store import Store
from berth.headers.address import SourcePolicy
async def main(root, url, sha):
    courier = Courier(SourcePolicy(allow=("127.0.0.0/8",)))
    store = Store(Path(root) / "store", courier, keep_free=0)
    def tell(done, total, rate):
        print(done, flush=True)
    await store.provide("uid", [FileRef(name="model.gguf", url=url, sha256=sha or None)], tell)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("plain", [False, True], ids=["hub", "plain URL"])
async def test_killed_at_random_bytes_it_resumes_to_the_same_file(hub, store, tmp_path, plain):
    chance = random.Random(plain)
    url = hub.plain_url("model.gguf") if plain else hub.resolve_url("org/name", "model.gguf")
    hub.faults.rate = 4e6

    def here():
        with contextlib.suppress(OSError):
            return max((p.stat().st_size for p in store.shelf.partials.iterdir()), default=0)
        return 0

    for _ in range(4):
        target = chance.randrange(0, SIZE)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, tmp_path, url, "" if plain else SHA,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        await until(
            f"{target} bytes",
            lambda p=process, t=target: p.returncode is not None or here() >= t,
        )
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if store.shelf.list_blobs():
            break
    hub.faults.set({})
    fetched = plain_file(hub) if plain else hub_file(hub)
    folder = await store.provide("uid", [fetched])
    assert (folder / "model.gguf").read_bytes() == CONTENT
    resumed = [a.range for a in bodies(hub) if a.range]
    assert resumed, "no attempt began where the one before was killed"


async def test_faults_are_all_known_to_this_test():
    tried = {key for param in FAULTS for key in param.values[0]}
    elsewhere = {"bare_416", "corrupt_at", "hang_after", "hangs"}
    assert tried | elsewhere == set(vars(Faults()))
