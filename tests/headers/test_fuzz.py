"""A short run of the fuzzer in tests/bench: every mutation gives facts or a typed error, fast and small."""

from bench.fuzz_headers import MOST_MIB, MOST_S, shard

COUNT = 30_000


def test_no_mutation_of_a_small_header_does_harm() -> None:
    tally = shard(COUNT, seed=7, every=50)
    assert not tally.fault
    assert tally.count == COUNT
    assert tally.slowest_s < MOST_S
    assert tally.peak_mib - tally.base_mib < MOST_MIB
    assert {"facts", "priced", "InvalidGGUF", "InvalidHeader"} <= set(tally.found)
