"""What ``berth fit`` says, to people and to programs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from berth.cli.main import main
from headers.written import gguf, llama, safetensors, weights


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(llama(), weights()))
    return str(path)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["fit", *words])


def priced(*words: str) -> dict[str, Any]:
    found = run(*words)
    assert found.exit_code == 0, found.output
    return json.loads(found.output)  # type: ignore[no-any-return]


def test_json_has_the_documented_shape(model: str) -> None:
    row = priced(model, "--json", "--", "-c", "512", "-np", "1", "-cram", "0", "-ctxcp", "0")
    assert set(row) == {"buffers", "needs", "total", "sure", "notes"}
    assert set(row["buffers"]["CPU"]) == {"model", "context", "compute", "output"}
    assert row["buffers"]["CPU"]["model"] == sum(nbytes for *_, nbytes in weights())
    assert row["buffers"]["CPU"]["context"] == 2 * 2 * 2 * 16 * 512 * 2
    assert row["needs"]["devices"] == []
    assert row["total"] == row["needs"]["host"]


def test_a_pasted_line_has_the_engines_defaults_and_a_profile_has_ours(model: str) -> None:
    pasted, ours = priced(model, "--json", "--", "llama-server"), priced(model, "--json")
    assert pasted["needs"]["host"] - ours["needs"]["host"] >= 8192 << 20


def test_devices_are_priced_one_by_one(model: str) -> None:
    row = priced(model, "--gpus", "2x24GiB", "--json", "--", "-ngl", "99", "-c", "512", "-np", "1")
    assert set(row["buffers"]) == {"CPU", "GPU0", "GPU1"}
    assert len(row["needs"]["devices"]) == 2
    assert row["total"] == row["needs"]["host"] + sum(row["needs"]["devices"])


def test_what_does_not_fit_is_said_with_numbers(model: str) -> None:
    row = priced(model, "--gpus", "1x64MiB", "--json", "--", "-c", "512", "-np", "1")
    assert any(note.startswith("GPU0 has 64 MiB and ") for note in row["notes"])


def test_device_none_leaves_the_cards_alone(model: str) -> None:
    assert priced(model, "--gpus", "1", "--json", "--", "-dev", "none")["needs"]["devices"] == []


def test_devices_that_the_command_line_names_are_believed(model: str) -> None:
    row = priced(
        model, "--json", "--", "-dev", "CUDA0,CUDA1", "-ngl", "99", "-c", "512", "-np", "1"
    )
    assert len(row["needs"]["devices"]) == 2


def test_people_get_a_table_a_sentence_and_the_largest_context(model: str) -> None:
    found = run(model, "--set", "contextLength=512", "--memory", "64MiB")
    assert found.exit_code == 0
    assert "CPU" in found.output
    assert "for 512 tokens of context (weights" in found.output
    assert "In 64MiB fits" in found.output


def test_a_profile_file_is_read(model: str, tmp_path: Path) -> None:
    profile = tmp_path / "p.yaml"
    profile.write_text(
        "kind: Profile\nspec: {contextLength: 256, parallel: 2, kvCacheType: {k: q8_0, v: q8_0}}\n"
    )
    row = priced(model, "--profile", str(profile), "--json")
    assert row["buffers"]["CPU"]["context"] == 2 * 2 * (32 * 512 * 34 // 32)


def test_a_safetensors_folder_is_priced_for_vllm(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(
        safetensors({"lm_head.weight": ("BF16", (128, 64), 16384)})
    )
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 1024, "vocab_size": 128, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    row = priced(
        str(tmp_path),
        "--gpus",
        "1x24GiB",
        "--json",
        "--",
        "vllm",
        "serve",
        "m",
        "--max-model-len",
        "512",
    )
    assert row["kvCacheMemoryBytes"] == 512 * 2 * 64 * 2 * 2
    assert 0 < row["gpuMemoryUtilization"] < 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/no/such.gguf"], "SourceNotFound"),
        (["MODEL", "--gpus", "many"], "is not N[xSIZE]"),
        (["MODEL", "--", "-ctk", "q3_1"], "'q3_1' is no cache type"),
        (["MODEL", "--", "-c", "many"], "-c many"),
        (["MODEL", "--", "-ot", "nothing"], "is not PATTERN=BUFFER"),
        (["MODEL", "--set", "parallel"], "is not KEY=VALUE"),
        (["MODEL", "--set", "parallel=-1"], "parallel"),
        (["MODEL", "MODEL"], "2 of them are models"),
        (["MODEL", "--", "-ctk", "q4_k"], "'q4_k' is no cache type"),
        (["MODEL", "--", "-ot", "(=CPU"], "is no pattern"),
        (["MODEL", "--", "-ot", "ffn=CUDA0"], "there are CPU"),
        (["MODEL", "--", "-b", "0"], "the least is 1"),
        (["MODEL", "--", "-c", "-5"], "the least is 0"),
        (["MODEL", "--", "-sm", "sideways"], "none, layer, row or tensor"),
        (["MODEL", "--", "-c"], "-c needs a value"),
        (["MODEL", "--", "--mmproj", "MODEL"], "of the kind model"),
        (["MODEL", "--gpus", "1xlots"], "not a quantity"),
        (["MODEL", "--memory", "lots"], "not a quantity"),
        (["MODEL", "--profile", "/no/such.yaml"], "No such file"),
        (["MODEL", "--set", "kvCacheType.k.z=3"], "kvCacheType"),
        (["hf://nothing"], "hf://OWNER/NAME"),
        ([""], "names nothing"),
        ([], "name a file or -m FILE"),
    ],
)
def test_errors_say_what_and_what_to_do(model: str, words: list[str], said: str) -> None:
    found = run(*(model if word == "MODEL" else word for word in words))
    assert found.exit_code == 2
    assert said in found.output
    assert "To mend it" in found.output


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        pytest.param("empty.gguf", b"", "InvalidGGUF", id="an empty file"),
        pytest.param("text.gguf", b"hello, this is a text and nothing more", "InvalidGGUF", id="a text"),
        pytest.param("cut.gguf", gguf(llama(), weights())[:300], "InvalidGGUF", id="a cut file"),
        pytest.param("m-00001-of-00002.gguf", gguf(llama(), weights()), "MissingShard", id="half a set"),
        pytest.param("notes.txt", b"hello", "InvalidHeader", id="no model's name"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_an_error_in_json_too(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    found = run(str(tmp_path / name), "--json")
    assert found.exit_code == 2
    assert said in json.loads(found.output)["error"]["wrong"]


def test_a_folder_without_a_model_and_an_option_that_is_none(tmp_path: Path) -> None:
    for words in ([str(tmp_path)], [str(tmp_path), "--no-such-option"]):
        found = run(*words, "--json")
        assert (found.exit_code, set(json.loads(found.output))) == (2, {"error"})


def test_flags_that_are_not_known_are_named_and_others_are_read(model: str) -> None:
    row = priced(
        model, "--json", "--", "--host", "::", "--no-such", "--temp=1", "--odd", "5", "-c", "512", "-np", "1", "-cram", "0"
    )  # fmt: skip
    assert row["notes"] == ["not known here, and priced as if it moved no byte: --no-such, --odd"]
    assert row["buffers"]["CPU"]["context"] == 2 * 2 * 2 * 16 * 512 * 2


def test_the_model_may_be_named_in_the_command_line(model: str) -> None:
    words = ("-c", "512", "-np", "1")
    named = priced("--json", "--", "llama-server", "-m", model, *words)
    assert named == priced(model, "--json", "--", *words)


def test_devices_have_the_rules_of_those_that_are_named(model: str) -> None:
    remote = priced(model, "--gpus", "1", "--json", "--", "-dev", "RPC0", "-c", "512", "-np", "1")
    assert remote == priced(model, "--gpus", "1:rpc", "--json", "--", "-c", "512", "-np", "1")
    assert "CPU_REPACK" not in priced(model, "--gpus", "1", "--json", "--")["buffers"]


def test_what_the_engine_refuses_is_a_note(model: str) -> None:
    row = priced(model, "--json", "--", "-fa", "off", "-ctv", "q8_0")
    assert "refused by the engine: a quantised V cache needs flash attention" in row["notes"]


def test_a_pasted_line_needs_neither_a_client_nor_the_api_nor_yaml() -> None:
    heavy = "{'httpx', 'pydantic', 'yaml', 'kr8s', 'kubernetes'}"
    code = f"import sys, berth.cli.fit; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


@pytest.mark.parametrize(
    ("gpus", "words", "noted"),
    [
        ("1x64MiB", ["-c", "512"], "the layers on devices;"),
        ("1", ["-c", "512", "-ngl", "-1"], "the layers on devices;"),
        ("1", ["-np", "1"], "the layers on devices and the context;"),
        ("1x24GiB", ["-c", "512"], ""),
        ("1", ["-c", "512", "-ngl", "99"], ""),
        ("1", ["-c", "512", "--fit", "off"], ""),
        ("0", ["-c", "512"], ""),
        ("0", ["-np", "1"], "the context;"),
    ],
    ids=[
        "layers on a card too small", "layers on a card of unknown size", "layers and context", "all fits",
        "layers are said", "shrinking is off", "nothing is open", "the context of the training",
    ],
)  # fmt: skip
def test_what_the_engine_may_shrink_is_priced_whole_and_said(
    model: str, gpus: str, words: list[str], noted: str
) -> None:
    row = priced(model, "--gpus", gpus, "--json", "--", "-np", "1", *words)
    said = [note for note in row["notes"] if "--fit on" in note]
    assert [note.startswith(f"left to llama-server (--fit on): {noted}") for note in said] == [
        True
    ] * bool(noted)
