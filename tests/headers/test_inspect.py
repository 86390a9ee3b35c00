"""Do a claim's facts fit a termination message, and is a stranger's message taken apart safely?"""

import base64
import contextlib
import json
import string
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.facts import Facts, Tensor, group_tensors
from berth.headers import FileRef, HeaderError, HeaderReason, HeaderResult, PathSource
from berth.headers.inspect import main
from berth.headers.local import read_path
from berth.headers.read import read_source
from berth.headers.report import LIMIT, VERSION, decode, encode, encode_error
from berth.headers.request import HeaderRequest
from fakes.gguf import sparse_llama

ROOT = Path(__file__).parents[1]


def packed(row: Any) -> str:
    return VERSION + base64.b85encode(zlib.compress(json.dumps(row).encode())).decode()


def result(facts: Facts, sizes: dict[str, int]) -> HeaderResult:
    files = tuple(FileRef("", name, size) for name, size in sizes.items())
    return HeaderResult(replace(facts, file_bytes=tuple(sizes.values())), files, "", "sha256:d")


def large_mixture(layers: int) -> Facts:
    """A mixture of experts whose layers differ in type and kind, as mixed quantisations make them."""
    tensors = [Tensor("token_embd.weight", "Q4_K", (7168, 129280), 521_000_000)]
    for i in range(layers):
        mixed = "Q6_K" if i < layers // 8 or i % 3 == 2 else "Q4_K"
        names = ["attn_norm", "attn_q_a_norm", "attn_kv_a_norm", "attn_q_a", "attn_q_b"]
        names += ["attn_kv_a_mqa", "attn_k_b", "attn_output", "ffn_norm"]
        if i < 3:
            names += ["ffn_gate", "ffn_up"]
        else:
            names += ["ffn_gate_inp", "exp_probs_b", "ffn_gate_exps", "ffn_up_exps"]
            names += ["ffn_gate_shexp", "ffn_up_shexp"]
        kinds = dict.fromkeys(names, "Q4_K") | {
            "attn_v_b": mixed,
            "ffn_down_exps" if i >= 3 else "ffn_down": mixed,
            "ffn_down_shexp": "Q6_K" if i % 2 else mixed,
        }
        for order, (name, kind) in enumerate(kinds.items()):
            shape = (7168, 512 + 64 * order)
            tensors.append(Tensor(f"blk.{i}.{name}.weight", kind, shape, 7168 * shape[1]))
    hparams = json.loads((ROOT / "data/memory/models.json").read_text())["deepseek-v3-q4km"]
    return Facts(
        format="gguf",
        architecture="deepseek2",
        name="A large mixture of experts",
        quantisation="Q4_K",
        vocabulary=129280,
        hparams=Facts.from_json(hparams).hparams | {"block_count": layers},
        tensors=group_tensors(tensors),
    )


@pytest.mark.parametrize("shards", [1, 64, 256])
def test_the_facts_of_126_layers_of_experts_fit(shards: int) -> None:
    sizes = {
        f"Large-Mixture-Q4_K_M-{n + 1:05d}-of-{shards:05d}.gguf": (40 << 30)
        + n * 7_654_321 % 999_983
        for n in range(shards)
    }
    whole = {"weights": result(large_mixture(126), sizes)}
    message = encode(whole)
    assert len(message.encode()) <= LIMIT
    assert decode(message) == whole


def test_what_does_not_fit_is_refused_with_its_size() -> None:
    tensors = [Tensor(f"t{n}.{n * n:x}", "F32", (n + 1,), n) for n in range(900)]
    facts = Facts(format="gguf", architecture="odd", tensors=group_tensors(tensors))
    with pytest.raises(
        HeaderError, match=r"take \d+ bytes, compressed; a pod can report 4096"
    ) as e:
        encode({"weights": result(facts, {"m.gguf": 1})})
    assert e.value.reason is HeaderReason.FACTS_TOO_LARGE


def test_every_model_that_was_measured_comes_back_as_it_went() -> None:
    for name, row in json.loads((ROOT / "data/memory/models.json").read_text()).items():
        whole = {"weights": result(Facts.from_json(row), {f"{name}.gguf": 1 << 30})}
        assert decode(encode(whole)) == whole, name


names = st.text(string.ascii_letters + string.digits + "-_. é", min_size=1, max_size=40)
scalars = st.one_of(
    st.integers(-(1 << 53), 1 << 53),
    st.booleans(),
    st.text(max_size=20),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15),
)
hparams = st.dictionaries(names, scalars | st.lists(scalars, max_size=8).map(tuple), max_size=8)


@given(hparams, st.dictionaries(names, st.integers(0, 1 << 50), min_size=1, max_size=5))
def test_any_facts_come_back_as_they_went(values: dict[str, Any], sizes: dict[str, int]) -> None:
    whole = {"weights": result(Facts(format="gguf", architecture="a", hparams=values), sizes)}
    assert decode(encode(whole)) == whole


@given(st.text())
def test_any_text_is_a_report_or_a_typed_error(text: str) -> None:
    for message in (text, VERSION + text, "{" + text):
        with pytest.raises(HeaderError):
            decode(message)


@given(st.recursive(scalars | st.none(), lambda c: st.lists(c) | st.dictionaries(names, c)))
def test_any_json_is_a_report_or_a_typed_error(row: Any) -> None:
    part = {"facts": row, "files": [["m.gguf", 1]], "digest": "d"}
    for message in (packed(row), packed({"weights": row}), packed({"weights": part})):
        with contextlib.suppress(HeaderError):
            assert all(isinstance(result, HeaderResult) for result in decode(message).values())


def forged(**facts: Any) -> Any:
    row = {"format": "gguf", "architecture": "a", "hparams": {}, "tensors": []} | facts
    return {"weights": {"facts": row, "files": [["m.gguf", 1]], "digest": "d"}}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(forged(name="x" * (8 << 20)), id="megabytes of one letter"),
        pytest.param(forged(hparams={"a": [[1, 10**12]]}), id="an array of a trillion members"),
        pytest.param(
            forged(tensors=[["b.{}", "F32", [1], 4, [0, 10**12]]]), id="a trillion blocks"
        ),
        pytest.param(forged(hparams={"a": float("nan")}), id="no number"),
        pytest.param(
            {"weights": forged()["weights"] | {"files": [["../../etc/passwd", 1]]}}, id="a path"
        ),
        pytest.param({"weights": forged()["weights"] | {"files": []}}, id="no file"),
    ],
)
def test_a_forged_message_costs_nothing(row: Any) -> None:
    with pytest.raises(HeaderError, match="cannot be read"):
        decode(packed(row))


@given(st.text(max_size=5000))
def test_an_error_is_told_within_the_limit(text: str) -> None:
    message = encode_error(HeaderError(HeaderReason.INVALID_GGUF, text))
    assert len(message.encode("utf-8", "replace")) <= LIMIT
    with pytest.raises(HeaderError) as e:
        decode(message)
    assert (e.value.reason, e.value.message) == (HeaderReason.INVALID_GGUF, text[:512])


def test_the_program_reports_every_part_of_a_model(tmp_path: Path) -> None:
    for name in ("weights", "draft"):
        sparse_llama(tmp_path / f"{name}.gguf", weights=1 << 30)
    report = tmp_path / "log"
    paths = [f"{name}={tmp_path}/{name}.gguf" for name in ("weights", "draft")]
    assert main(["--report", str(report), *paths]) == 0
    found = decode(report.read_text())
    assert list(found) == ["weights", "draft"]
    alone = read_source(HeaderRequest(source=PathSource(f"{tmp_path}/draft.gguf")))
    assert found["draft"].facts == alone.facts
    assert [(file.path, file.url) for file in found["draft"].files] == [("draft.gguf", "")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(None, HeaderReason.SOURCE_NOT_FOUND, id="absent"),
        pytest.param(b"GGUF\x03\0\0\0", HeaderReason.INVALID_GGUF, id="cut"),
    ],
)
def test_the_program_reports_why_it_cannot(
    tmp_path: Path, content: bytes | None, reason: HeaderReason
) -> None:
    if content is not None:
        (tmp_path / "m.gguf").write_bytes(content)
    report = tmp_path / "log"
    assert main(["--report", str(report), f"weights={tmp_path}/m.gguf"]) == 1
    with pytest.raises(HeaderError) as e:
        decode(report.read_text())
    assert e.value.reason is reason


def test_a_disk_that_fails_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(HeaderError) as e:
        read_path(str(tmp_path / ("x" * 300)))
    assert e.value.reason is HeaderReason.SOURCE_UNREACHABLE
