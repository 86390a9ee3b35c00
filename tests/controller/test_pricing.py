"""What is priced is what is launched; what cannot be priced says why and has no size."""

import asyncio
from typing import Any

import pytest

from berth.api.inventory import NodeInventory
from berth.api.model import FactsStatus, Model
from berth.controller.parts import facts_status, inspected, mounted_files, parts_of
from berth.controller.priced import Priced
from berth.controller.pricing import Files, PriceSettings, Unpriceable, price
from berth.controller.resolve import resolve
from berth.headers import HeaderRequest, PathSource
from berth.headers.pool import HeaderPool
from berth.reasons import Reason
from controller.objects import inventory, model
from fakes.gguf import sparse_llama

GIB = 1 << 30
SETTINGS = PriceSettings(images={"llamacpp/cpu": "cpu:1", "llamacpp/cuda": "cuda:1"})


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> FactsStatus:
    """Read once, in a child process as the controller does it: no test here writes to them."""
    path = tmp_path_factory.mktemp("facts") / "m.gguf"
    sparse_llama(path, weights=GIB, context=8192)
    result = asyncio.run(HeaderPool().read(HeaderRequest(source=PathSource(str(path)))))
    return facts_status({"weights": result}, parts_of(Model.model_validate(model())), "src")


def _price(facts: FactsStatus, settings: PriceSettings = SETTINGS, **spec: Any) -> Priced:
    found = Model.model_validate(model(**spec))
    files = Files(facts, tuple(facts.files))
    return price(found, resolve(found, None), files, settings, profile="")


def test_on_a_gpu_first_then_on_the_cpu(facts: FactsStatus) -> None:
    found = _price(facts)
    assert [(need.variant, len(need.gpus)) for need in found.needs] == [("cuda", 1), ("cpu", 0)]
    gpu, cpu = found.needs
    assert gpu.gpus[0] > GIB > gpu.host
    assert cpu.host > GIB
    assert [variant.image for variant in found.variants] == ["cuda:1", "cpu:1"]


def test_the_sentence_has_the_numbers_and_the_words(facts: FactsStatus) -> None:
    shown = _price(facts).shown["cpu"]
    assert "4096 tokens of context" in shown.text
    assert "KV cache" in shown.text
    assert (shown.weights > GIB, shown.kv_cache > 0, shown.gpu) == (True, True, 0)


def test_context_is_per_request_and_charged_for_every_slot(facts: FactsStatus) -> None:
    found = _price(facts, overrides={"contextLength": 2048, "parallel": 3})
    assert (found.context_length, found.parallel) == (2048, 3)
    command = list(found.variants[1].command())
    assert command[command.index("-c") + 1] == "6144"
    assert command[command.index("-np") + 1] == "3"
    assert command[command.index("--model") + 1] == "/models/m.gguf"
    assert command[command.index("--alias") + 1] == "m"


def test_the_default_context_is_the_clusters_or_what_was_trained(facts: FactsStatus) -> None:
    wide = PriceSettings(images=SETTINGS.images, context_length=99999)
    assert _price(facts).context_length == 4096
    assert _price(facts, wide).context_length == 8192
    assert _price(facts).settings_hash == _price(facts, wide).settings_hash


def test_two_gpus_by_profile_share_the_bytes(facts: FactsStatus) -> None:
    found = _price(facts, overrides={"parallelism": {"tensor": 2}})
    one, two = found.needs[0].gpus
    (alone,) = _price(facts).needs[0].gpus
    assert max(one, two) < alone < one + two


def test_what_is_kept_warm_is_charged_beside_what_the_engine_has_copied(facts: FactsStatus) -> None:
    """On the CPU the weights are mapped anyway: nothing is charged twice."""
    plain, warm = _price(facts), _price(facts, overrides={"keepWarm": ["*.gguf"]})
    size = facts.files[0].size
    assert warm.needs[0].host - plain.needs[0].host == size
    assert warm.variants[0].host_file_pages == size
    assert "1.17 GiB kept warm" in warm.needs[0].text
    assert warm.needs[1].host == plain.needs[1].host
    assert warm.settings_hash == plain.settings_hash


@pytest.mark.parametrize(
    ("spec", "reason", "word"),
    [
        pytest.param(
            {"overrides": {"contextLength": 9000, "maxContextLength": 8000}},
            Reason.CONTEXT_TOO_LONG,
            "9000",
            id="a context above the profile's window names both numbers",
        ),
        pytest.param(
            {"overrides": {"runtime": "abacus"}},
            Reason.UNSUPPORTED,
            "llamacpp",
            id="no such runtime",
        ),
        pytest.param(
            {"overrides": {"command": ["llama-server", "-m", "{model}", "-s", "{portt}"]}},
            Reason.BAD_FLAGS,
            "{portt}",
            id="a placeholder that there is not",
        ),
        pytest.param(
            {"overrides": {"maxContextLength": 8000, "args": ["-c", "9000"]}},
            Reason.CONTEXT_TOO_LONG,
            "9000",
            id="a literal flag above the profile's window",
        ),
        pytest.param(
            {"overrides": {"args": ["--port", "1"]}},
            Reason.BAD_FLAGS,
            "--port",
            id="a literal flag that Berth owns",
        ),
        pytest.param(
            {"overrides": {"args": ["--cache-ram", "lots"]}},
            Reason.BAD_FLAGS,
            "lots",
            id="no number",
        ),
    ],
)
def test_what_cannot_be_priced_says_why(
    facts: FactsStatus, spec: dict[str, Any], reason: Reason, word: str
) -> None:
    with pytest.raises(Unpriceable) as caught:
        _price(facts, **spec)
    assert caught.value.reason is reason
    assert word in caught.value.message


def test_facts_that_nobody_can_read_have_no_size(facts: FactsStatus) -> None:
    with pytest.raises(Unpriceable) as caught:
        _price(facts.model_copy(update={"record": '{"format": 1}'}))
    assert caught.value.reason is Reason.INVALID_HEADER


def test_without_any_image_the_needs_are_told_but_nothing_is_placed(facts: FactsStatus) -> None:
    found = _price(facts, PriceSettings(images={}))
    assert (found.blocked, found.needs) == (Reason.UNSUPPORTED, ())
    assert "llamacpp/cpu" in found.blocked_message
    assert found.shown["cpu"].weights > GIB


def test_an_image_of_the_profile_wins(facts: FactsStatus) -> None:
    found = _price(facts, overrides={"images": {"cpu": "mine:2"}})
    assert [variant.image for variant in found.variants] == ["cuda:1", "mine:2"]


# Host paths.


def _path_model(path: str) -> Model:
    source = {"path": {"hostPath": "/srv/models", "path": path}}
    return Model.model_validate(model(source=source))


def _inventory(
    node: str, facts: FactsStatus | None, digest: str = "d", **more: Any
) -> NodeInventory:
    said = facts.model_copy(update={"digest": digest}).wire() if facts else None
    entry = {"path": "/srv/models/m.gguf", "facts": said} | more
    return NodeInventory.model_validate(inventory(node, paths=[entry]))


def test_only_nodes_with_the_same_file_can_run_it(facts: FactsStatus) -> None:
    seen = [_inventory("a", facts), _inventory("b", facts, "other"), _inventory("c", facts)]
    assert inspected("/srv/models/m.gguf", seen).nodes == {"a", "c"}


def test_a_path_that_no_policy_allows_is_refused_in_the_agents_words() -> None:
    said = _inventory("a", None, reason="HostPathNotAllowed", message="no")
    found = inspected("/srv/models/m.gguf", [said])
    assert found.facts is None
    assert found.refusal is not None
    assert found.refusal.reason == "HostPathNotAllowed"


@pytest.mark.parametrize(
    ("path", "want"),
    [
        pytest.param("m.gguf", "m.gguf", id="a file"),
        pytest.param("sub/m.gguf", "sub/m.gguf", id="a file in a folder"),
        pytest.param("sub", "sub/m.gguf", id="a folder"),
    ],
)
def test_mounted_files_are_named_below_the_mount(facts: FactsStatus, path: str, want: str) -> None:
    assert [file.name for file in mounted_files(_path_model(path), facts)] == [want]


def test_the_peak_of_a_profile_is_claimed_where_it_is_more(facts: FactsStatus) -> None:
    plain = _price(facts, overrides={"parallelism": {"tensor": 2}})
    peak = _price(facts, overrides={"parallelism": {"tensor": 2}, "memory": {"peak": "20Gi"}})
    assert [list(need.gpus) for need in peak.needs] == [[10 * GIB, 10 * GIB], []]
    assert [need.host for need in peak.needs] == [plain.needs[0].host, 20 * GIB]
    assert _price(facts, overrides={"memory": {"peak": "1Mi"}}).needs == _price(facts).needs


# What a profile brings along.


def test_a_command_template_is_priced_as_it_is_written_and_completed(facts: FactsStatus) -> None:
    command = ["nice", "llama-server", "-m", "{model}", "-c", "2048", "-b", "{contextLength}"]
    found = _price(facts, overrides={"command": command, "contextLength": 1024})
    words = found.variants[1].command()
    assert (found.context_length, found.runs_code) == (2048, ("Command",))
    assert words[:8] == [*command[:3], "/models/m.gguf", "-c", "2048", "-b", "1024"]
    assert (words.count("-c"), words.count("--model"), words.count("--port")) == (1, 0, 1)
    assert "-np" in words


def test_literals_that_hide_fields_and_keys_without_effect_are_told(facts: FactsStatus) -> None:
    found = _price(facts, overrides={"batchSize": 256, "args": ["-b", "512"]})
    assert found.warnings == ("-b 512 hides batchSize, which is set too",)
