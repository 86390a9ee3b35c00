"""Is a measured case's command line read as the settings that it was measured with, however it is spelled?"""

from typing import Any

import pytest

from berth.estimator import Settings
from berth.runtimes.llamacpp_flags import parse
from estimator.models import cases, settings_of

SWITCH = {"on": "1", "off": "0", "auto": "-1"}


def spelled(row: dict[str, Any]) -> list[list[str]]:
    """The flags of a case, the short way, the long way, and with equals signs or older names."""
    named = [
        ("-c", "--ctx-size", row["n_ctx"]),
        ("-np", "--parallel", row["parallel"]),
        ("-b", "--batch-size", row["batch"]),
        ("-ub", "--ubatch-size", row["ubatch"]),
        ("-ctk", "--cache-type-k", row["cache_type_k"]),
        ("-ctv", "--cache-type-v", row["cache_type_v"]),
        ("-ngl", "--gpu-layers", row["n_gpu_layers"]),
    ]
    split = ",".join(f"{share:g}" for share in row.get("tensor_split", ()))
    named += [("-ts", "--tensor-split", split)] if split else []
    named += [("-ncmoe", "--n-cpu-moe", row["n_cpu_moe"])] if "n_cpu_moe" in row else []
    if "override_tensor" in row:
        named.append(("-ot", "--override-tensor", row["override_tensor"]))
    switched = [
        ("-kvu", "--kv-unified") if row["kv_unified"] else ("-no-kvu", "--no-kv-unified"),
        *([("--embedding", "--embeddings")] if row["embeddings"] else []),
        *([("--swa-full", "--swa-full")] if row["swa_full"] else []),
        *([("-cmoe", "--cpu-moe")] if row.get("cpu_moe") else []),
        *([] if row["kv_offload"] else [("-nkvo", "--no-kv-offload")]),
        *([] if row["op_offload"] else [("--no-op-offload", "--no-op-offload")]),
        *([] if row["repack"] else [("-nr", "--no-repack")]),
    ]
    short = [word for one, _, value in named for word in (one, str(value))]
    long = [word for _, one, value in named for word in (one, str(value))]
    equal = [f"{one}={value}" for _, one, value in named]
    flash = row["flash_attn"]
    return [
        ["llama-server", *short, "-fa", flash, *(one for one, _ in switched)],
        [*long, "--flash-attn", flash, *(one for _, one in switched)],
        [*equal, "--flash-attn", SWITCH[flash], *(one for _, one in switched)],
        [*short, "--n-gpu-layers", str(row["n_gpu_layers"]), f"--flash-attn={flash}", *(one for one, _ in switched)],
    ]  # fmt: skip


def test_every_spelling_of_a_case_is_read_alike() -> None:
    for case in cases():
        want: Settings = settings_of(case["settings"])
        for words in spelled(case["settings"]):
            found = parse(words)
            assert (found.settings, found.unknown) == (want, ()), words


@pytest.mark.parametrize(
    ("words", "mode"),
    [(["--no-mmap"], "none"), (["--mlock"], "mmap+mlock"), (["--load-mode", "dio"], "dio"), ([], "auto")],
)  # fmt: skip
def test_older_names_of_load_modes_are_read(words: list[str], mode: str) -> None:
    assert parse(words).settings.load_mode == mode
