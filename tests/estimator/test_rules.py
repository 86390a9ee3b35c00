"""The arithmetic of caches, case by case as it went wrong in the field (cases A)."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.estimator import Device, Settings, estimate
from berth.estimator.effective import effective
from berth.estimator.shape import shape_of
from berth.facts import Facts, TensorGroup
from berth.runtimes.llamacpp import BUILD
from berth.runtimes.llamacpp_flags import parse
from estimator.models import facts, models

MiB = 1 << 20
ONE = Settings(parallel=1, kv_unified=False, cache_ram_mib=0, ctx_checkpoints=0)

LFM2 = facts(
    "lfm2", block_count=16, embedding_length=2048, context_length=128000, feed_forward_length=8192,
    attention__head_count=32, attention__head_count_kv=(0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0),
    shortconv__l_cache=3,
)  # fmt: skip
QWEN35 = facts(
    "qwen35moe", block_count=40, embedding_length=2048, context_length=262144, attention__head_count=16,
    attention__head_count_kv=2, attention__key_length=256, attention__value_length=256, full_attention_interval=4,
    ssm__conv_kernel=4, ssm__state_size=128, ssm__group_count=16, ssm__inner_size=4096, ssm__time_step_rank=32,
)  # fmt: skip
GEMMA_270M = facts(
    "gemma3", block_count=18, embedding_length=640, context_length=32768, attention__head_count=4,
    attention__head_count_kv=1, attention__key_length=256, attention__value_length=256, attention__sliding_window=512,
)  # fmt: skip
GEMMA_27B = facts(
    "gemma3", block_count=62, embedding_length=5376, context_length=131072, attention__head_count=32,
    attention__head_count_kv=16, attention__key_length=128, attention__value_length=128, attention__sliding_window=1024,
)  # fmt: skip
DEEPSEEK = facts(
    "deepseek2", block_count=61, embedding_length=7168, context_length=163840, attention__head_count=128,
    attention__head_count_kv=1, attention__kv_lora_rank=512, rope__dimension_count=64, attention__key_length=576,
    attention__value_length=512, attention__key_length_mla=192, attention__value_length_mla=128,
)  # fmt: skip
DEEPSEEK_OLD = facts(
    "deepseek2", block_count=61, embedding_length=7168, context_length=163840, attention__head_count=128,
    attention__head_count_kv=128, attention__kv_lora_rank=512, rope__dimension_count=64, attention__key_length=192,
    attention__value_length=128,
)  # fmt: skip
LLAMA_8B = facts(
    "llama", block_count=32, embedding_length=4096, context_length=131072, attention__head_count=32,
    attention__head_count_kv=8,
)  # fmt: skip
QWEN3_06B = facts(
    "qwen3", block_count=28, embedding_length=1024, context_length=40960, attention__head_count=16,
    attention__head_count_kv=8, attention__key_length=128, attention__value_length=128,
)  # fmt: skip
QWEN3_17B = replace(QWEN3_06B, hparams={**QWEN3_06B.hparams, "embedding_length": 2048})
GEMMA_3N = facts(
    "gemma3n", block_count=35, embedding_length=2048, context_length=32768, attention__head_count=8,
    attention__head_count_kv=2, attention__key_length=256, attention__value_length=256, attention__sliding_window=512,
    attention__shared_kv_layers=15,
)  # fmt: skip


def kv(model: Facts, **changes: object) -> float:
    """MiB of keys and values with these settings."""
    return estimate(model, replace(ONE, **changes)).kinds.kv_cache / MiB  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("have", "want"),
    [
        pytest.param(kv(LFM2, context=4096), 48, id="A1 a per-layer array of heads at 4096"),
        pytest.param(kv(LFM2, context=32768), 384, id="A1 and at 32768"),
        pytest.param(kv(QWEN35, context=32768), 640, id="A2 only every fourth layer attends"),
        pytest.param(kv(QWEN35, context=131072), 2560, id="A2 at 131072"),
        pytest.param(kv(QWEN35, context=262144), 5120, id="A2 at 262144"),
        pytest.param(kv(QWEN35, context=131072, cache_type_k="q8_0", cache_type_v="q8_0"), 1360, id="A2 in q8_0"),
        pytest.param(kv(QWEN35, context=131072, cache_type_k="q4_0", cache_type_v="q4_0"), 720, id="A2 in q4_0"),
        pytest.param(kv(GEMMA_270M, context=4096), 27, id="A3 a window, one slot"),
        pytest.param(kv(GEMMA_270M, context=4096, parallel=2), 42, id="A3 two slots"),
        pytest.param(kv(GEMMA_270M, context=4096, parallel=4), 72, id="A3 four slots"),
        pytest.param(kv(GEMMA_270M, context=4096, parallel=8), 72, id="A3 eight slots are clamped"),
        pytest.param(kv(GEMMA_270M, context=8192), 39, id="A3 one slot at 8192"),
        pytest.param(kv(GEMMA_270M, context=8192, parallel=2), 54, id="A3 two slots at 8192"),
        pytest.param(kv(GEMMA_270M, context=4096, parallel=2, kv_unified=True), 34.5, id="A3 two slots, unified"),
        pytest.param(kv(GEMMA_270M, context=4096, parallel=4, kv_unified=True), 49.5, id="A3 four slots, unified"),
        pytest.param(kv(GEMMA_27B, context=131072), 10864, id="A4 gemma-3-27b"),
        pytest.param(kv(QWEN3_06B, context=32768), 3584, id="A4 a head's width is a key, not a quotient"),
        pytest.param(kv(DEEPSEEK, context=32768), 2196, id="A7 MLA keeps keys only"),
        pytest.param(kv(DEEPSEEK, context=32768, cache_type_k="q8_0", cache_type_v="q8_0"), 1166.625, id="A7 in q8_0"),
        pytest.param(kv(DEEPSEEK, context=163840) / 1024, pytest.approx(10.72, abs=0.005), id="A7 at 163840, in GiB"),
        pytest.param(kv(DEEPSEEK_OLD, context=4096), 61 * 4096 * 128 * (192 + 128) * 2 / MiB, id="A7 an old file keeps both"),
        pytest.param(kv(LLAMA_8B, context=8192), 1024, id="A8 f16"),
        pytest.param(kv(LLAMA_8B, context=8192, cache_type_k="q8_0", cache_type_v="q8_0"), 544, id="A8 q8_0"),
        pytest.param(kv(LLAMA_8B, context=8192, cache_type_k="q4_0", cache_type_v="q4_0"), 288, id="A8 q4_0"),
        pytest.param(kv(LLAMA_8B, context=8192, cache_type_k="q5_1", cache_type_v="q5_1"), 384, id="A8 q5_1"),
        pytest.param(kv(LLAMA_8B, context=8192, cache_type_k="iq4_nl", cache_type_v="iq4_nl"), 288, id="A8 iq4_nl"),
        pytest.param(kv(LLAMA_8B, context=8192, cache_type_k="q8_0"), 784, id="A8 K and V of two types"),
        pytest.param(kv(LLAMA_8B, context=16384, parallel=2), 2048, id="A10 two requests of 8192"),
        pytest.param(kv(QWEN3_17B, context=131072), 14336, id="A11 above the trained context is charged"),
        pytest.param(kv(LLAMA_8B), 16384, id="A15 a context of 0 is the trained one"),
    ],
)  # fmt: skip
def test_cache(have: float, want: float) -> None:
    assert have == want


def test_a2_the_state_is_there_for_every_slot() -> None:
    for slots in (1, 4):
        found = estimate(QWEN35, replace(ONE, context=32768, parallel=slots))
        assert found.kinds.state / MiB == 62.8125 * slots


def test_a9_a_quantised_v_without_flash_attention_is_refused() -> None:
    found = estimate(
        LLAMA_8B,
        replace(ONE, context=8192, cache_type_k="q8_0", cache_type_v="q8_0", flash_attn="off"),
    )
    assert found.refusals == ("a quantised V cache needs flash attention",)


def test_mla_refuses_two_cache_types() -> None:
    assert estimate(DEEPSEEK, replace(ONE, context=4096, cache_type_k="q8_0")).refusals


def test_a11_a_context_above_the_trained_one_is_noted() -> None:
    assert any(
        "above the trained 40960" in note
        for note in estimate(QWEN3_17B, replace(ONE, context=131072)).notes
    )


GEMMA_4 = replace(
    GEMMA_3N,
    architecture="gemma4",
    hparams={**GEMMA_3N.hparams, "attention.sliding_window_pattern": (True, False) * 18},
)


def owners(model: Facts, shared: int) -> int:
    changed = replace(model, hparams={**model.hparams, "attention.shared_kv_layers": shared})
    assert estimate(changed, replace(ONE, context=4096)).kinds.kv_cache > 0
    return sum(layer.keeps for layer in shape_of(changed).layers)


@pytest.mark.parametrize(
    ("model", "shared", "layers"),
    [
        pytest.param(GEMMA_3N, 15, 20, id="A13 gemma3n: the first 20 own a cache"),
        pytest.param(
            GEMMA_3N, 5, 20, id="A13 gemma3n: the engine's code says 20, whatever the header says"
        ),
        pytest.param(GEMMA_4, 15, 20, id="gemma4: the header says how many"),
        pytest.param(GEMMA_4, 0, 35, id="gemma4: none shared"),
        pytest.param(GEMMA_4, 35, 1, id="A13 all shared: at least one owns a cache"),
        pytest.param(GEMMA_4, 99, 1, id="A13 more shared than there are"),
    ],
)
def test_a13_layers_that_share_a_cache(model: Facts, shared: int, layers: int) -> None:
    assert owners(model, shared) == layers


def test_a19_the_prompt_cache_is_host_memory() -> None:
    without, with_it = (
        estimate(LLAMA_8B, replace(ONE, context=4096, cache_ram_mib=size)) for size in (0, 8192)
    )
    assert with_it.host.anonymous - without.host.anonymous == 8192 * MiB


def test_a_missing_key_makes_it_unsure_and_is_named() -> None:
    model = replace(LLAMA_8B, missing=("llama.attention.head_count",))
    found = estimate(model, replace(ONE, context=4096))
    assert not found.sure
    assert any("llama.attention.head_count" in note for note in found.notes)


def test_an_unknown_architecture_is_bounded_from_above() -> None:
    known = models()["gemma3-4b-q4km"]
    unknown = replace(known, architecture="never-heard-of")
    for context in (4096, 65536):
        sure, bound = (estimate(one, replace(ONE, context=context)) for one in (known, unknown))
        assert not bound.sure
        assert "never-heard-of" in " ".join(bound.notes)
        assert bound.total >= sure.total


def test_shares_follow_memory_and_split() -> None:
    llama = models()["llama-3.1-8b-q4km"]
    devices = [Device("GPU0", memory=3 << 30), Device("GPU1", memory=1 << 30)]
    by_memory = estimate(llama, replace(ONE, context=4096), devices=devices)
    by_split = estimate(llama, replace(ONE, context=4096, tensor_split=(3.0, 1.0)), devices=devices)
    assert by_memory.buffers == by_split.buffers
    assert by_memory.buffers["GPU0"].model > 2 * by_memory.buffers["GPU1"].model


def test_the_sentence_names_what_is_needed() -> None:
    found = estimate(models()["qwen3-0.6b-q8"], replace(ONE, context=4096))
    assert "for 4096 tokens of context (weights 604 MiB, KV cache 448 MiB" in found.sentence


def test_adapters_and_projectors_are_charged_where_they_lie() -> None:
    lora = Facts(
        "gguf",
        "llama",
        kind="adapter",
        tensors=(
            TensorGroup("blk.{}.attn_q.weight.lora_a", "F32", (4096, 16), 262144, ((0, 32),)),
        ),
    )
    plain = estimate(models()["llama-3.1-8b-q4km"], replace(ONE, context=4096))
    both = estimate(
        models()["llama-3.1-8b-q4km"],
        replace(ONE, context=4096),
        adapters=[lora],
        projector=models_projector(),
    )
    assert both.kinds.adapters == 32 * 262144
    assert both.host.anonymous - plain.host.anonymous == both.kinds.adapters + both.kinds.projector


def models_projector() -> Facts:
    hparams = {
        "vision.image_size": 896, "vision.patch_size": 14, "vision.embedding_length": 1152,
        "vision.feed_forward_length": 4304, "vision.attention.head_count": 16, "projector_type": "gemma3",
    }  # fmt: skip
    return Facts("gguf", "clip", kind="mmproj", hparams=hparams)


def test_the_projector_of_gemma3_computes_in_what_was_measured() -> None:
    found = estimate(
        models()["gemma3-4b-q4km"], replace(ONE, context=4096), projector=models_projector()
    )
    assert found.kinds.projector / MiB == pytest.approx(121.25, abs=0.3)


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(models())),
    context=st.integers(256, 65536),
    slots=st.integers(1, 4),
    step=st.integers(1, 65536),
    gpus=st.integers(0, 2),
)
def test_more_context_never_takes_less(
    name: str, context: int, slots: int, step: int, gpus: int
) -> None:
    devices = [Device(f"GPU{number}") for number in range(gpus)]
    small, large = (
        estimate(models()[name], replace(ONE, context=size, parallel=slots), devices=devices)
        for size in (context, context + step)
    )
    assert small.kinds.kv_cache <= large.kinds.kv_cache
    assert all(one.compute >= 0 for one in large.buffers.values())


@given(
    context=st.integers(1, 200_000),
    slots=st.integers(1, 16),
    unified=st.booleans(),
    ubatch=st.integers(1, 4096),
)
def test_sizes_in_force_hold_what_was_asked(
    context: int, slots: int, unified: bool, ubatch: int
) -> None:
    sizes = effective(
        shape_of(GEMMA_270M),
        Settings(context=context, parallel=slots, kv_unified=unified, ubatch=ubatch),
    )
    assert sizes.context >= context
    assert sizes.context == sizes.cells * sizes.streams
    assert sizes.window_cells <= sizes.cells
    assert sizes.rows % slots == 0


@pytest.mark.parametrize(
    ("flags", "mib"),
    [
        ("-c 4096 -np 1", 10.90),
        ("-c 4096 -np 1 -fa off", 47.90),
        ("-c 8192 -np 4 --no-kv-unified -ub 128 -fa off", 6.85),
        ("-c 4096 -np 3 -kvu -ctk q8_0 -ctv q8_0", 12.04),
        ("-c 8192 -np 1 -ub 2048", 65.62),
    ],
)
def test_gemma4_is_laid_out_as_the_build_that_is_known_does(flags: str, mib: float) -> None:
    """What build 11669 logged on a file with these shapes; build 11434's are among the measured cases."""
    asked = parse(flags.split(), base=Settings(build=BUILD)).settings
    found = estimate(models()["t-gemma4"], asked).buffers["CPU"].compute / MiB
    assert found == pytest.approx(mib, abs=0.006)
    before = estimate(models()["t-gemma4"], replace(asked, build=0)).buffers["CPU"].compute / MiB
    assert abs(before - found) > 0.05


def test_an_embedding_that_is_mapped_twice_is_the_same_pages() -> None:
    mapped = estimate(models()["t-gemma4"], Settings(parallel=1)).host
    read = estimate(models()["t-gemma4"], Settings(parallel=1, load_mode="none")).host
    table = next(one for one in models()["t-gemma4"].tensors if one.name == "token_embd.weight")
    assert read.total - mapped.total == table.nbytes


def tower(kind: str, **keys: int) -> Facts:
    """A projector of a kind; its image is 560 pixels of patches of 14."""
    hparams = {
        "vision.image_size": 560, "vision.patch_size": 14, "vision.embedding_length": 1280,
        "vision.feed_forward_length": 3420, "vision.attention.head_count": 16, "projector_type": kind,
    }  # fmt: skip
    more = {f"vision.{key}": value for key, value in keys.items()}
    return Facts("gguf", "clip", kind="mmproj", hparams={**hparams, **more})


@pytest.mark.parametrize(
    ("projector", "patches"),
    [
        pytest.param(tower("idefics3"), 1600, id="one size, which the header has"),
        pytest.param(tower("qwen2.5vl_merger"), 16384, id="the engine's most tokens, merged by two a side"),
        pytest.param(tower("qwen2.5vl_merger", image_max_pixels=1003520), 5120, id="the header's most pixels"),
        pytest.param(tower("pixtral", spatial_merge_size=2), 4096, id="merged as the header says"),
        pytest.param(tower("newtower"), 16384, id="not known: the most of any"),
        pytest.param(tower("newtower", spatial_merge_size=1 << 30), 4096 * 64, id="a header that is not believed"),
    ],
)  # fmt: skip
def test_a_projector_is_charged_for_the_largest_image(projector: Facts, patches: int) -> None:
    found = estimate(models()["t-llama"], replace(ONE, context=512), projector=projector)
    assert found.kinds.projector == 4 * patches * (3420 + 3 * 1280) or patches == 1600
    assert found.sure is (patches == 1600)
    assert [f"{patches} patches" in note for note in found.notes] == [True] * (patches != 1600)
