"""Do the benchmarks start, end, and say what they have to? (None of them is run here.)"""

import json
from pathlib import Path

import pytest

from bench import cold_start, placement_fleet, placements
from bench.__main__ import BENCHES, HERE, Bench, chosen, run
from berth.api.model import FactsStatus, Model
from berth.api.profile import ProfileFields
from berth.controller.pricing import Files, PriceSettings, price
from berth.controller.resolve import source_hash
from cluster.problem import Problem


def figures(*names: str) -> list[str]:
    return [figure for bench in chosen(names) for figure in bench.figures]


@pytest.mark.parametrize(
    ("names", "want"),
    [
        pytest.param(["planner-binds"], ["planner-binds"], id="one by its figure"),
        pytest.param(
            ["planner"], ["planner-growth", "planner-binds"], id="all that begin with a word"
        ),
        pytest.param(
            ["reload-host", "header-parse"],
            ["header-parse", "reload-host"],
            id="in their own order",
        ),
    ],
)
def test_names_choose_benchmarks(names: list[str], want: list[str]) -> None:
    assert figures(*names) == want


def test_no_name_means_all_and_an_unknown_one_is_refused() -> None:
    assert chosen([]) == list(BENCHES)
    with pytest.raises(SystemExit, match="there is no figure plan"):
        chosen(["plan"])


def test_every_script_is_there() -> None:
    assert [b for b in BENCHES if not b.why_not and not (HERE / b.script).is_file()] == []


def script(folder: Path, text: str, *, bound_s: int = 60) -> Bench:
    path = folder / "script.py"
    path.write_text(text)
    return Bench(("speed",), "how fast", str(path), bound_s=bound_s)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        pytest.param("print('ratio speed 1.0 goal 1')", [], id="a figure"),
        pytest.param("print('skip speed: no wind')", [], id="a word why not"),
        pytest.param("print('ratio speed-other 1.0 goal 1')", ["speed"], id="another figure"),
        pytest.param("raise SystemExit(3)", ["speed"], id="nothing"),
    ],
)
def test_what_is_neither_there_nor_explained_is_told(
    tmp_path: Path, text: str, missing: list[str]
) -> None:
    assert run(script(tmp_path, text)) == missing


def test_past_its_bound_a_benchmark_is_told_to_end_and_tidies_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "import threading\n"
        "try:\n    threading.Event().wait()\n"
        "except KeyboardInterrupt:\n    print('tidied up')\n"
    )
    assert run(script(tmp_path, text, bound_s=3)) == ["speed"]
    printed = capsys.readouterr().out
    assert "not done within 3 s" in printed
    assert "tidied up" in printed


def test_the_models_of_the_comparison_are_priced_without_a_source() -> None:
    facts = FactsStatus.model_validate(placement_fleet.facts()["facts"])
    model = Model.model_validate(placement_fleet.model("m", "bench"))
    assert facts.source_hash == source_hash(model)
    settings = PriceSettings(images={"llamacpp/cuda": "fake"})
    priced = price(model, ProfileFields(), Files(facts, tuple(facts.files)), settings, profile="")
    assert 0 < priced.needs[0].gpus[0] < placement_fleet.GPU_MEMORY


def test_only_a_reserved_runner_with_a_device_counts_as_placed() -> None:
    spec = {
        "modelRef": {"name": "m"},
        "nodeName": "a",
        "stage": "Reserved",
        "claim": {"devices": [{"device": "GPU-0"}]},
    }
    assert placements._placed({"spec": spec}) == "m"
    assert placements._placed({"spec": spec | {"stage": "Preparing"}}) == ""
    assert placements._placed({"spec": spec | {"claim": {"host": 1}}}) == ""


def frames(*chunks: object) -> list[bytes]:
    return [b"data: " + json.dumps(chunk).encode() + b"\n" for chunk in chunks]


def test_keepalive_frames_are_no_token() -> None:
    delta = [{"choices": []}, {"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    token = {"choices": [{"delta": {"content": "A"}}]}
    lines = iter([b": ping\n", *frames(*delta, token, token)])
    cold_start._await_token(lines)
    assert len(list(lines)) == 1


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(frames({"error": {"code": "load_failed"}}), id="an error event"),
        pytest.param([*frames({"choices": []}), b"data: [DONE]\n"], id="an end without a token"),
    ],
)
def test_an_answer_without_a_token_is_no_figure(lines: list[bytes]) -> None:
    with pytest.raises(Problem):
        cold_start._await_token(lines)
