"""Are a log's lines added up as the engine meant them?"""

import pytest

from estimator.engine_log import read_log

PAIR = [
    "llama_kv_cache:      CUDA0 KV buffer size =  2560.00 MiB",
    "llama_kv_cache:      CUDA0 KV buffer size =   174.00 MiB",
]


@pytest.mark.parametrize(
    ("lines", "total"),
    [(PAIR, 2734.0), (PAIR * 2, 2734.0), (PAIR[:1], 2560.0), (PAIR[:1] * 2, 2560.0), ([], 0.0)],
    ids=["two caches", "A6 the pair printed twice", "one cache", "one printed twice", "none"],
)
def test_kv_lines(lines: list[str], total: float) -> None:
    assert read_log(lines).total("KV") == total


MODEL = "load_tensors:   CPU_Mapped model buffer size =   100.00 MiB"


def test_two_caches_of_one_size_are_two_and_a_trial_run_before_does_not_count() -> None:
    round_ = [MODEL, PAIR[0], PAIR[0]]
    assert read_log(round_).total("KV") == 5120.0
    assert read_log(round_ * 2).total("KV") == 5120.0
    assert read_log(round_ * 2).total("model") == 100.0


def test_owners_and_kinds_are_kept_apart_and_the_last_compute_buffer_counts() -> None:
    found = read_log(
        [
            "0.00.1 I load_tensors:   CPU_Mapped model buffer size =   235.16 MiB",
            "0.00.1 I load_tensors:   CPU_REPACK model buffer size =    12.66 MiB",
            "0.00.2 I sched_reserve:        CPU compute buffer size =    20.00 MiB",
            "0.00.3 I sched_reserve:        CPU compute buffer size =    24.27 MiB",
            "0.00.3 I llama_memory_recurrent:  CPU RS buffer size =     0.62 MiB",
        ]
    )
    assert found.total("model") == pytest.approx(247.82)
    assert found.total("model", owner="CPU_REPACK") == 12.66
    assert found.total("compute") == 24.27
    assert found.total("RS") == 0.62
