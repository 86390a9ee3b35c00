"""Is what is priced what is launched, and is a pasted command line read as llama-server reads it?"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.profile import ProfileFields
from berth.estimator import AUTO, Settings
from berth.facts import Facts
from berth.runtimes.base import Adapter, Launch
from berth.runtimes.llamacpp import DEFAULT_CONTEXT, LlamaCpp
from berth.runtimes.llamacpp_flags import parse, write
from berth.runtimes.registry import runtime

LLAMA = Facts("gguf", "llama", hparams={"context_length": 131072, "block_count": 32})
SHORT = Facts("gguf", "llama", hparams={"context_length": 2048, "block_count": 32})
BERT = Facts("gguf", "bert", hparams={"context_length": 512, "block_count": 12})
LAUNCH = Launch(model="/models/m.gguf", name="m")


def launched(facts: Facts = LLAMA, **profile: object) -> list[str]:
    engine = LlamaCpp()
    return engine.command(engine.settings(facts, ProfileFields.model_validate(profile)), LAUNCH)


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_a10_context_length_is_per_request_and_slots_are_explicit() -> None:
    words = launched(contextLength=8192, parallel=2)
    assert (value(words, "-c"), value(words, "-np")) == ("16384", "2")
    assert "--no-kv-unified" in words


@pytest.mark.parametrize(
    ("facts", "profile", "context"),
    [
        (LLAMA, {}, DEFAULT_CONTEXT),
        (SHORT, {}, 2048),
        (LLAMA, {"contextLength": 0}, 131072),
        (LLAMA, {"contextLength": 262144}, 262144),
        (LLAMA, {"contextLength": 65536, "maxContextLength": 8192}, 8192),
    ],
    ids=["A15 the documented default", "the trained length if shorter", "A15 zero is the trained length",
         "A11 above the trained length", "the profile's most"],
)  # fmt: skip
def test_the_context_is_always_written(facts: Facts, profile: dict[str, int], context: int) -> None:
    assert value(launched(facts, **profile), "-c") == str(context)


def test_every_setting_that_moves_a_byte_is_written() -> None:
    words = launched()
    for flag in (
        "-c",
        "-np",
        "-b",
        "-ub",
        "-ctk",
        "-ctv",
        "-fa",
        "-ngl",
        "-cram",
        "-ctxcp",
        "--fit",
    ):
        assert flag in words, flag
    assert value(words, "-cram") == "0"
    assert value(words, "--fit") == "off"


def test_a19_the_prompt_cache_is_as_asked() -> None:
    assert value(launched(cacheRam="2Gi"), "-cram") == "2048"


def test_an_encoder_is_started_for_embeddings() -> None:
    words = launched(BERT)
    assert "--embeddings" in words
    assert value(words, "-ub") == "512"


def test_arguments_of_the_profile_win() -> None:
    settings = LlamaCpp().settings(
        LLAMA, ProfileFields.model_validate({"args": ["-ctk", "q8_0", "--n-cpu-moe=4"]})
    )
    assert (settings.cache_type_k, settings.n_cpu_moe) == ("q8_0", 4)


def test_files_of_the_pod_are_passed() -> None:
    launch = replace(
        LAUNCH,
        projector="/p.gguf",
        adapters=(Adapter("/a.gguf", 0.5),),
        draft="/d.gguf",
        sessions="/s",
        args=("--seed", "1"),
    )
    words = LlamaCpp().command(Settings(), launch)
    assert value(words, "--mmproj") == "/p.gguf"
    assert value(words, "--lora-scaled") == "/a.gguf:0.5"
    assert value(words, "--model-draft") == "/d.gguf"
    assert value(words, "--slot-save-path") == "/s"
    assert words[-2:] == ["--seed", "1"]


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("", Settings()),
        ("llama-server -m x.gguf", Settings()),
        ("-c 8192 -np 2", Settings(context=8192, parallel=2)),
        ("--ctx-size 8192 --parallel 2", Settings(context=8192, parallel=2)),
        ("--ctx-size=8192", Settings(context=8192)),
        ("-ngl 99 -ncmoe 16", Settings(n_gpu_layers=99, n_cpu_moe=16)),
        ("--n-gpu-layers all --cpu-moe", Settings(n_gpu_layers=AUTO, cpu_moe=True)),
        ("-fa -c 1", Settings(flash_attn="on", context=1)),
        ("-fa on", Settings(flash_attn="on")),
        ("--flash-attn off", Settings(flash_attn="off")),
        ("-ctk q8_0 -ctv Q4_0", Settings(cache_type_k="q8_0", cache_type_v="q4_0")),
        ("--rerank", Settings(embeddings=True, pooling="rank")),
        ("--embedding --pooling cls", Settings(embeddings=True, pooling="cls")),
        ("-kvu", Settings(kv_unified=True)),
        ("-no-kvu -nkvo -nr", Settings(kv_unified=False, kv_offload=False, repack=False)),
        ("-ot a=CPU,b=CPU -ot c=CPU", Settings(override_tensor=("a=CPU", "b=CPU", "c=CPU"))),
        ("-ts 3,1", Settings(tensor_split=(3.0, 1.0))),
        ("--no-mmap", Settings(load_mode="none")),
        ("-cram -1", Settings(cache_ram_mib=-1)),
        ("--temp 0.7 -s -1 --jinja -c 4096 --host 0.0.0.0 --port 80", Settings(context=4096)),
        ("--no-webui --some-new-flag 3 -ub 128", Settings(ubatch=128)),
    ],
)  # fmt: skip
def test_a_pasted_command_line(words: str, want: Settings) -> None:
    assert parse(words.split()).settings == want


def test_files_and_devices_of_a_pasted_command_line() -> None:
    line = parse(
        [
            "-m",
            "m.gguf",
            "-mm",
            "p.gguf",
            "--lora",
            "a.gguf,b.gguf",
            "-md",
            "d.gguf",
            "-dev",
            "none",
        ]
    )
    assert (line.model, line.projector, line.adapters, line.draft, line.devices) == (
        "m.gguf", "p.gguf", ("a.gguf", "b.gguf"), "d.gguf", (),
    )  # fmt: skip


@pytest.mark.parametrize("words", [["-c"], ["-c", "many"], ["-fa", "maybe"], ["-m"]])
def test_a_flag_without_sense_is_named(words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]):
        parse(words)


@given(
    st.builds(
        Settings,
        context=st.integers(1, 1 << 20),
        parallel=st.integers(1, 64),
        kv_unified=st.booleans(),
        batch=st.integers(1, 8192),
        ubatch=st.integers(1, 8192),
        cache_type_k=st.sampled_from(["f16", "q8_0", "iq4_nl"]),
        cache_type_v=st.sampled_from(["f32", "bf16", "q5_1"]),
        flash_attn=st.sampled_from(["on", "off", "auto"]),
        swa_full=st.booleans(),
        embeddings=st.booleans(),
        n_gpu_layers=st.integers(-1, 200),
        cpu_moe=st.booleans(),
        n_cpu_moe=st.integers(0, 90),
        override_tensor=st.lists(st.sampled_from(["a=CPU", r"blk\.1\.=CPU"]), max_size=3).map(
            tuple
        ),
        tensor_split=st.lists(st.integers(0, 9).map(float), max_size=3).map(tuple),
        kv_offload=st.booleans(),
        op_offload=st.booleans(),
        repack=st.booleans(),
        cache_ram_mib=st.integers(-1, 1 << 20),
        ctx_checkpoints=st.integers(0, 64),
        draft_max=st.integers(1, 16),
    )
)
def test_what_is_written_is_read_back_as_it_was(settings: Settings) -> None:
    assert parse(write(settings)).settings == settings


def test_the_runtime_is_found_by_name() -> None:
    assert runtime().traits.name == "llamacpp"
    with pytest.raises(KeyError, match="llamacpp"):
        runtime("no-such")
