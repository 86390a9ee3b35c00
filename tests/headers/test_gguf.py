"""What a GGUF header says, and what is done with one that lies (cases B of the field)."""

import json
import struct
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.facts import MAX_JSON, Facts
from berth.headers.errors import HeaderError
from berth.headers.gguf import parse_gguf
from berth.headers.gguf_facts import gguf_facts, read_gguf
from berth.headers.window import STEP
from headers.written import (
    array_bytes,
    gguf,
    llama,
    reader,
    tensor_bytes,
    text,
    value_bytes,
    weights,
)


def read(raw: bytes) -> Facts:
    return read_gguf(reader(raw), len(raw))


def head(tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


def test_a_small_model_is_read_whole() -> None:
    facts = read(gguf(llama(), weights()))
    assert (facts.architecture, facts.layers, facts.context_length) == ("llama", 2, 512)
    assert facts.weight_bytes == sum(nbytes for *_, nbytes in weights())
    assert facts.parameters == facts.weight_bytes // 4
    assert facts.tied_embeddings
    assert facts.missing == ()


def test_facts_survive_json() -> None:
    facts = read(
        gguf(llama(**{"llama.attention.sliding_window_pattern": [True, False]}), weights())
    )
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_facts_of_a_large_mixture_fit_in_a_status() -> None:
    layers, keys = 126, {**llama(), "llama.block_count": 126}
    keys["llama.attention.head_count_kv"] = [block % 9 for block in range(layers)]
    tensors = []
    for block in range(layers):
        for number, name in enumerate(
            ("attn_q", "attn_k", "attn_v", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
        ):
            tensors.append(
                (f"blk.{block}.{name}.weight", (32, 4, 2), (block * 7 + number) % 2, 1024)
            )
    length = len(json.dumps(read(gguf(keys, tensors)).to_json(), separators=(",", ":")))
    assert length <= MAX_JSON


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(
            head(keys=1, rest=text("k") + struct.pack("<IIQ", 9, 8, 1 << 63)),
            id="B1 array of 2^63 strings",
        ),
        pytest.param(
            head(keys=1, rest=text("k") + struct.pack("<IIQ", 9, 4, 1 << 61)),
            id="B1 array of 2^61 numbers",
        ),
        pytest.param(head(keys=1 << 63), id="B1 2^63 keys"),
        pytest.param(head(tensors=1 << 63), id="B1 2^63 tensors"),
        pytest.param(head(keys=1, rest=struct.pack("<Q", 1 << 63)), id="B1 key of 2^63 bytes"),
        pytest.param(
            head(keys=1, rest=text("k") + struct.pack("<IQ", 8, 1 << 63)),
            id="B1 string of 2^63 bytes",
        ),
        pytest.param(
            head(keys=1, rest=text("k") + struct.pack("<IIQIQ", 9, 9, 1, 9, 1 << 62)),
            id="B1 nested array of 2^62",
        ),
        pytest.param(
            head(
                keys=1,
                rest=text("k") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1) * 40,
            ),
            id="B1 arrays nested forty deep",
        ),
        pytest.param(
            head(tensors=1, rest=text("t") + struct.pack("<I", 1_000_000)),
            id="B2 a million dimensions",
        ),
        pytest.param(
            head(tensors=1, rest=tensor_bytes("t", (4194305, 4194305, 211106198978564), 0, 0)),
            id="B2 a product that is 4 modulo 2^64",
        ),
        pytest.param(
            head(tensors=1, rest=tensor_bytes("t", (), 0, 0) + b"\0" * 64), id="B2 no dimensions"
        ),
        pytest.param(gguf([("", value_bytes(1))]), id="B13 key without length"),
        pytest.param(gguf([("a", value_bytes(1)), ("a", value_bytes(2))]), id="B13 key twice"),
        pytest.param(gguf({}, [("t", (8,), 0, 32), ("t", (8,), 0, 32)]), id="B13 tensor twice"),
        pytest.param(
            gguf([("k", struct.pack("<I", 77) + b"\0" * 64)]), id="B13 unknown value type"
        ),
        pytest.param(gguf({"general.alignment": 3}), id="B4 alignment of 3"),
        pytest.param(gguf({}, [("t", (33,), 8, 34)]), id="a row that is no whole block"),
        pytest.param(gguf({}, [("t", (64,), 0, 256)], data=16), id="tensor data that is not there"),
        pytest.param(b"", id="an empty file"),
        pytest.param(b"GGUF", id="only the magic"),
        pytest.param(b"GGML" + b"\0" * 64, id="another magic"),
        pytest.param(gguf({}, version=1), id="version 1"),
    ],
)
def test_a_lying_header_is_refused_with_a_reason(raw: bytes) -> None:
    tracemalloc.start()
    begin = time.perf_counter()
    with pytest.raises(HeaderError) as caught:
        read(raw)
    assert time.perf_counter() - begin < 1.0
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
    assert caught.value.reason == "InvalidGGUF"
    assert caught.value.message


@pytest.mark.parametrize(
    ("kind", "elements", "nbytes"),
    [(39, 64, 34), (40, 64, 36), (41, 128, 18), (34, 256, 54), (35, 256, 66)],
    ids=["B3 MXFP4", "B3 NVFP4", "B3 Q1_0", "B3 TQ1_0", "B3 TQ2_0"],
)
def test_new_types_have_their_block_sizes(kind: int, elements: int, nbytes: int) -> None:
    assert read(gguf(llama(), [("t", (elements,), kind, nbytes)])).weight_bytes == nbytes


def test_b3_an_unknown_type_is_sized_by_its_place_and_warned_of() -> None:
    facts = read(gguf(llama(), [("a", (64,), 99, 96), ("b", (8,), 0, 32), ("c", (64,), 99, 160)]))
    assert facts.weight_bytes == 96 + 32 + 160
    assert any("unknown type 99" in warning for warning in facts.warnings)


@pytest.mark.parametrize("alignment", [32, 64])
@pytest.mark.parametrize("pad", range(0, 64, 8))
def test_b4_data_begins_at_the_aligned_end(alignment: int, pad: int) -> None:
    raw = gguf(
        {**llama(), "general.alignment": alignment, "x": "y" * pad},
        [("t", (8,), 0, 32)],
        alignment=alignment,
    )
    assert read(raw).weight_bytes == 32
    with pytest.raises(HeaderError):
        read(raw[:-33] if alignment == 32 else raw[:-65])


def test_b6_keys_behind_a_large_tokenizer_are_found_and_nothing_more_is_fetched() -> None:
    tokens = [f"token{number:06d}".encode() * 3 for number in range(200_000)]
    merges = [b"aaaa bbbb%d" % number for number in range(200_000)]
    pairs = [
        ("tokenizer.ggml.tokens", value_bytes(tokens)),
        ("tokenizer.ggml.merges", value_bytes(merges)),
    ]
    pairs += [(key, value_bytes(value)) for key, value in llama().items()]
    raw = gguf(pairs, weights())
    log: list[tuple[int, int]] = []
    tracemalloc.start()
    header = parse_gguf(reader(raw, log), len(raw))
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
    facts = gguf_facts([header])
    assert (facts.vocabulary, facts.architecture, facts.layers) == (200_000, "llama", 2)
    assert sum(length for _, length in log) <= header.header_bytes + STEP
    assert all(length <= STEP for _, length in log)


def test_b10_numbers_may_be_scalars_or_arrays() -> None:
    keys = llama(
        **{
            "llama.attention.head_count": [4, 8],
            "llama.feed_forward_length": [128, 256],
            "llama.embedding_length": [64],
            "llama.block_count": [2],
        }
    )
    facts = read(gguf(keys, weights()))
    assert facts.per_layer("attention.head_count") == (4, 8)
    assert facts.per_layer("attention.head_count_kv") == (2, 2)
    assert (facts.layers, facts.integer("embedding_length")) == (2, 64)


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        ("llama.attention.head_count_kv", ()),
        ("llama.attention.head_count", ("llama.attention.head_count",)),
        ("llama.context_length", ("llama.context_length",)),
        ("general.architecture", ("general.architecture",)),
    ],
    ids=[
        "B11 kv heads default to heads",
        "B11 no head count",
        "B11 no context length",
        "B11 no architecture",
    ],
)
def test_a_missing_key_is_named(gone: str, missing: tuple[str, ...]) -> None:
    assert (
        read(gguf({key: value for key, value in llama().items() if key != gone}, weights())).missing
        == missing
    )


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(struct.pack("<I", 9) + array_bytes([1, 2, 3], "<", "u8"), id="B13 u8"),
        pytest.param(struct.pack("<I", 9) + array_bytes([1.5, 2.5], "<", "f64"), id="B13 f64"),
        pytest.param(struct.pack("<I", 9) + array_bytes([True, False], "<"), id="B13 bool"),
        pytest.param(struct.pack("<I", 9) + array_bytes(["a", "bb"], "<"), id="B13 strings"),
        pytest.param(struct.pack("<I", 9) + array_bytes([[1, 2], [3]], "<"), id="B13 nested"),
        pytest.param(
            struct.pack("<I", 9) + array_bytes([["a"], ["b", "c"]], "<"), id="B13 nested strings"
        ),
        pytest.param(struct.pack("<I", 9) + array_bytes([], "<"), id="B13 empty"),
        pytest.param(value_bytes(b"\xff\xfe\x00bad"), id="B13 text that is not UTF-8"),
        pytest.param(value_bytes("x" * 5000), id="a long text"),
    ],
)
def test_keys_behind_an_odd_value_are_still_read(odd: bytes) -> None:
    facts = read(
        gguf(
            [("odd", odd), *((key, value_bytes(value)) for key, value in llama().items())],
            weights(),
        )
    )
    assert facts.layers == 2


def test_big_endian_files_say_the_same() -> None:
    big, little = read(gguf(llama(), weights(), order=">")), read(gguf(llama(), weights()))
    assert big.big_endian
    assert big.hparams == little.hparams
    assert big.tensors == little.tensors


def test_b13_a_file_cut_at_any_byte_is_an_error_and_never_a_crash() -> None:
    raw = gguf(llama(odd=[["a"], ["b"]]), weights()[:4])
    for length in range(len(raw) - 31):
        with pytest.raises(HeaderError):
            read(raw[:length])


BASE = gguf(
    llama(**{"general.alignment": 64, "a": [1, 2], "b": ["x", "y"], "c": [["z"]]}),
    weights()[:3],
    alignment=64,
)
HEAD = BASE[: -sum(-(-nbytes // 64) * 64 for *_, nbytes in weights()[:3])]


@settings(max_examples=2000)
@given(
    st.lists(
        st.tuples(st.integers(0, len(HEAD) - 1), st.binary(min_size=1, max_size=9)),
        min_size=1,
        max_size=4,
    )
)
def test_mutated_headers_give_facts_or_a_typed_error(changes: list[tuple[int, bytes]]) -> None:
    raw = bytearray(BASE)
    for at, new in changes:
        raw[at : at + len(new)] = new[: len(raw) - at]
    try:
        facts = read(bytes(raw))
    except HeaderError:
        return
    assert Facts.from_json(json.loads(json.dumps(facts.to_json(), allow_nan=False))) == facts
