"""How headers are read over HTTP: ranges, redirects, hubs, and servers that misbehave."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from berth.headers import HeaderError, HeaderRequest, HeaderResult, HubSource, PathSource, UrlSource
from berth.headers.address import SourcePolicy
from berth.headers.pool import HeaderPool
from berth.headers.read import read_source
from berth.headers.window import STEP
from headers.written import gguf, llama, safetensors, value_bytes, weights

TOKENS = (
    "tokenizer.ggml.tokens",
    value_bytes([b"token%06d" % number for number in range(150_000)]),
)
KEYS = [(key, value_bytes(value)) for key, value in llama().items()]
SMALL = gguf(llama(), weights())
LARGE = gguf([TOKENS, *KEYS], [*weights(), ("big", (1 << 20,), 0, 1 << 22)])
COMMIT = "c" * 40

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """Serves paths as told; remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def allow(self) -> tuple[str, ...]:
        return (f"127.0.0.1:{self.server_address[1]}",)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(
            (self.path, {name.lower(): value for name, value in self.headers.items()})
        )
        self.server.answers.get(
            self.path.partition("?")[0], lambda handler: plain(handler, 404, b"")
        )(self)

    def log_message(self, *_: object) -> None:
        pass


def plain(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"content-length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    try:
        handler.wfile.write(body)
        handler.server.sent += len(body)  # type: ignore[attr-defined]
    except OSError:
        handler.close_connection = True


def ranged(raw: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if "range" not in handler.headers:
            plain(handler, 200, raw, **headers)
            return
        begin, end = (
            int(part) for part in handler.headers["range"].removeprefix("bytes=").split("-")
        )
        part = raw[begin : end + 1]
        plain(
            handler,
            206,
            part,
            content_range=f"bytes {begin}-{begin + len(part) - 1}/{len(raw)}",
            **headers,
        )

    return answer


def whole(raw: bytes) -> Answer:
    return lambda handler: plain(handler, 200, raw)


def moved(target: str, **headers: str) -> Answer:
    return lambda handler: plain(handler, 302, b"", location=target, **headers)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(
        target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def read(server: Server, path: str, **more: object) -> HeaderResult:
    return read_source(HeaderRequest(UrlSource(server.url + path), allow=server.allow, **more))  # type: ignore[arg-type]


def test_only_the_header_is_fetched(server: Server) -> None:
    server.answers["/m.gguf"] = ranged(LARGE, etag='"abc"')
    found = read(server, "/m.gguf")
    assert found.facts.vocabulary == 150_000
    assert (found.files[0].size, found.files[0].etag) == (len(LARGE), "abc")
    assert server.sent <= found.facts.header_bytes + STEP


def test_b8_a_server_that_ignores_ranges_is_read_as_a_stream_and_left(server: Server) -> None:
    server.answers["/m.gguf"] = whole(LARGE)
    assert read(server, "/m.gguf").facts.vocabulary == 150_000


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            lambda handler: plain(
                handler, 206, SMALL, content_range=f"bytes 0-{len(SMALL)}/{len(SMALL)}"
            ),
            id="B8 a range that ends behind the file",
        ),
        pytest.param(
            lambda handler: plain(handler, 206, SMALL[:99], content_range="bytes 0-98/*"),
            id="no size",
        ),
        pytest.param(
            lambda handler: plain(handler, 206, SMALL[1:99], content_range="bytes 1-98/1000"),
            id="another range",
        ),
        pytest.param(lambda handler: plain(handler, 416, b""), id="B8 416"),
        pytest.param(lambda handler: plain(handler, 500, b""), id="500"),
    ],
)
def test_a_wrong_range_is_an_error_and_never_a_wrong_file(server: Server, answer: Answer) -> None:
    server.answers["/m.gguf"] = answer
    with pytest.raises(HeaderError) as caught:
        read(server, "/m.gguf")
    assert caught.value.reason == "SourceFailed"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "SourceUnauthorized"),
        (403, "SourceUnauthorized"),
        (404, "SourceNotFound"),
        (503, "SourceFailed"),
    ],
)
def test_refusals_have_reasons(server: Server, status: int, reason: str) -> None:
    server.answers["/m.gguf"] = lambda handler: plain(handler, status, b"no")
    with pytest.raises(HeaderError) as caught:
        read(server, "/m.gguf")
    assert caught.value.reason == reason


def test_redirects_are_followed_and_the_token_stays(server: Server) -> None:
    other = f"http://localhost:{server.server_address[1]}"
    server.answers["/m.gguf"] = moved(f"{other}/real.gguf?signature=1")
    server.answers["/real.gguf"] = ranged(SMALL)
    port = server.server_address[1]
    request = HeaderRequest(
        UrlSource(f"{server.url}/m.gguf"),
        token="secret",
        allow=(f"127.0.0.1:{port}", f"localhost:{port}"),
    )
    assert read_source(request).facts.layers == 2
    seen = {path.partition("?")[0]: headers.get("authorization") for path, headers in server.asked}
    assert seen == {"/m.gguf": "Bearer secret", "/real.gguf": None}


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/",
        "http://10.0.0.1/x",
        "http://[::1]/x",
        "file:///etc/passwd",
        "http://0.0.0.0/x",
    ],
)
def test_a_redirect_to_a_private_address_is_refused(server: Server, target: str) -> None:
    server.answers["/m.gguf"] = moved(target)
    with pytest.raises(HeaderError) as caught:
        read(server, "/m.gguf")
    assert caught.value.reason == "SourceForbidden"


def test_a_redirect_loop_ends(server: Server) -> None:
    server.answers["/m.gguf"] = moved("/m.gguf")
    with pytest.raises(HeaderError, match="redirects more than"):
        read(server, "/m.gguf")


@pytest.mark.parametrize(
    ("address", "allow", "permitted"),
    [
        ("8.8.8.8", (), True),
        ("127.0.0.1", (), False),
        ("10.1.2.3", (), False),
        ("169.254.169.254", (), False),
        ("100.64.0.1", (), False),
        ("::1", (), False),
        ("fe80::1", (), False),
        ("::ffff:10.0.0.1", (), False),
        ("64:ff9b::a00:1", (), False),
        ("10.1.2.3", ("10.0.0.0/8",), True),
        ("10.1.2.3", ("hub.internal",), True),
        ("10.1.2.3", ("hub.internal:443",), True),
        ("10.1.2.3", ("hub.internal:80",), False),
        ("169.254.169.254", ("hub.internal",), False),
        ("10.1.2.3", ("nonsense/x",), False),
    ],
)
def test_the_source_policy(address: str, allow: tuple[str, ...], permitted: bool) -> None:
    assert SourcePolicy(allow).permits("hub.internal", 443, address) is permitted


def hub(server: Server, files: dict[str, bytes], *, lfs: bool = True) -> HeaderRequest:
    listing = json.dumps(
        {"sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
    ).encode()
    server.answers["/api/models/o/r/revision/main"] = whole(listing)
    for name, raw in files.items():
        digest = hashlib.sha256(raw).hexdigest()
        extra = {"x_linked_etag": f'"{digest}"', "x_repo_commit": COMMIT} if lfs else {}
        server.answers[f"/o/r/resolve/{COMMIT}/{name}"] = ranged(raw, **extra)
    return HeaderRequest(HubSource("o/r"), endpoint=server.url, allow=server.allow, token="t")


def test_a_hub_repository_is_pinned_to_its_commit(server: Server) -> None:
    found = read_source(
        hub(
            server,
            {
                "m-Q4_K_M.gguf": SMALL,
                "m-Q8_0.gguf": LARGE,
                "mmproj-f16.gguf": SMALL,
                "README.md": b"x",
            },
        )
    )
    assert [file.path for file in found.files] == ["m-Q4_K_M.gguf"]
    assert found.files[0].sha256 == hashlib.sha256(SMALL).hexdigest()
    assert found.revision == COMMIT
    assert found.digest.startswith("sha256:")


def test_several_models_without_a_preferred_one_must_be_named(server: Server) -> None:
    request = hub(server, {"a.gguf": SMALL, "b.gguf": SMALL})
    with pytest.raises(HeaderError, match="name one") as caught:
        read_source(request)
    assert caught.value.reason == "AmbiguousFile"


def shards(count: int, *, said: int | None = None) -> dict[str, bytes]:
    """A split set: the first has the keys and no tensors."""
    files = {}
    for number in range(count):
        split = {
            "split.no": number,
            "split.count": said or count,
            "split.tensors.count": len(weights()),
        }
        keys = {**llama(), **split} if number == 0 else split
        part = [] if number == 0 else weights()[(number - 1) :: (count - 1)]
        files[f"m-{number + 1:05d}-of-{count:05d}.gguf"] = gguf(keys, part)
    return files


def test_a17_a_split_set_is_the_sum_of_its_files(server: Server) -> None:
    found = read_source(hub(server, shards(3)))
    assert found.facts.weight_bytes == sum(nbytes for *_, nbytes in weights())
    assert (found.facts.split_count, len(found.files)) == (3, 3)


def test_a17_a_missing_file_is_named(server: Server) -> None:
    files = shards(3)
    del files["m-00002-of-00003.gguf"]
    with pytest.raises(HeaderError, match="m-00002-of-00003") as caught:
        read_source(hub(server, files))
    assert caught.value.reason == "MissingShard"


def test_a17_a_set_that_contradicts_its_names(server: Server) -> None:
    with pytest.raises(HeaderError) as caught:
        read_source(hub(server, shards(3, said=5)))
    assert caught.value.reason == "MissingShard"


CONFIG = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 4096, "vocab_size": 100, "sliding_window": 512, "sliding_window_pattern": 6,
    },
    "quantization_config": {"quant_method": "awq", "bits": 4},
}  # fmt: skip


def test_a_safetensors_model_with_a_nested_config(server: Server) -> None:
    part = safetensors(
        {
            "model.layers.0.q.weight": ("BF16", (64, 64), 8192),
            "lm_head.weight": ("F32", (100, 64), 25600),
        }
    )
    files = {
        "model.safetensors": part,
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer.json": b"{}",
    }
    found = read_source(hub(server, files))
    facts = found.facts
    assert (facts.format, facts.architecture) == ("safetensors", "Gemma3ForConditionalGeneration")
    assert (facts.weight_bytes, facts.quantisation, facts.layers) == (8192 + 25600, "awq-4", 12)
    assert facts.hparams["layer_kinds"] == (*("sliding",) * 5, "full") * 2
    assert {file.path for file in found.files} == set(files)


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff" * 16,
        b"\x10\0\0\0\0\0\0\0" + b"not json at all!",
        safetensors({"a": ("F32", (4, 4), 63)}),
        safetensors({"a": ("F32", (1 << 60, 1 << 60), 0)}),
        b"\x02\0\0\0\0\0\0\0[]",
        b"\x40\x42\x0f\0\0\0\0\0" + b"[" * 1_000_000,
    ],
    ids=["length", "text", "bytes of a shape", "huge shape", "a list", "nested a million deep"],
)
def test_a_lying_safetensors_header_is_refused(server: Server, raw: bytes) -> None:
    server.answers["/m.safetensors"] = ranged(raw)
    with pytest.raises(HeaderError) as caught:
        read(server, "/m.safetensors")
    assert caught.value.reason == "InvalidHeader"


async def test_the_pool_reads_in_a_child_without_our_secrets(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_TOKEN", "secret")
    server.answers["/m.gguf"] = ranged(LARGE)
    request = HeaderRequest(UrlSource(f"{server.url}/m.gguf"), allow=server.allow, namespace="a")
    found = await HeaderPool().read(request)
    assert found == read_source(request)


async def test_the_pool_hands_on_reasons(tmp_path: object) -> None:
    with pytest.raises(HeaderError) as caught:
        await HeaderPool().read(HeaderRequest(PathSource("/no/such.gguf")))
    assert caught.value.reason == "SourceNotFound"


async def test_the_pool_ends_a_source_that_is_too_slow(server: Server) -> None:
    released = threading.Event()

    def hang(_: BaseHTTPRequestHandler) -> None:
        released.wait(20)

    server.answers["/m.gguf"] = hang
    pool = HeaderPool(deadline_s=1.0)
    with pytest.raises(HeaderError) as caught:
        await pool.read(HeaderRequest(UrlSource(f"{server.url}/m.gguf"), allow=server.allow))
    released.set()
    assert caught.value.reason == "SourceTooSlow"


def folder(tmp_path: Path, index: bytes) -> PathSource:
    for number in (1, 2):
        part = safetensors({f"t{number}": ("F32", (4,), 16)})
        (tmp_path / f"model-{number:05d}-of-00002.safetensors").write_bytes(part)
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    return PathSource(str(tmp_path))


def test_a_folder_is_held_against_its_index(tmp_path: Path) -> None:
    names = {f"t{number}": f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)}
    whole_index = json.dumps({"weight_map": names}).encode()
    assert read_source(HeaderRequest(folder(tmp_path, whole_index))).facts.weight_bytes == 32
    more = json.dumps({"weight_map": {**names, "t3": "model-00003-of-00003.safetensors"}}).encode()
    with pytest.raises(HeaderError) as caught:
        read_source(HeaderRequest(folder(tmp_path, more)))
    assert caught.value.reason == "MissingShard"


@pytest.mark.parametrize(
    "index", [b"no json", b"[]", b"{}", b'{"weight_map": {"t": "../../etc/passwd"}}']
)
def test_a_lying_index_is_refused(tmp_path: Path, index: bytes) -> None:
    with pytest.raises(HeaderError) as caught:
        read_source(HeaderRequest(folder(tmp_path, index)))
    assert caught.value.reason == "InvalidHeader"
