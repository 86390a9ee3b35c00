"""Does a runtime keep the contract? Tests for every one of them, those of plugins too (`berth.runtimes.pytest_plugin`).

They work offline and start nothing: what a runtime does is values in, values out.
"""

import copy
import pathlib
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from berth.api.profile import ProfileFields
from berth.facts import Facts, TensorGroup
from berth.runtimes.base import API_VERSION, Host, Job, Launch, Member, Ranks, Runtime, Way
from berth.runtimes.checks import runs_own_code
from berth.runtimes.flags import read_flags
from berth.runtimes.registry import BUILT_IN, registry
from berth.runtimes.template import field_values

GIB = 1 << 30
CARDS = (80 * GIB,)
LAUNCH = Launch(model="/models/a model", name="org/my model", port=8123, revision="0" * 40)
KINDS = ("tensor", "pipeline", "data", "expert", "context")
SILENT = """
import socket, sys
def refuse(*a, **k): raise SystemExit("network")
socket.socket.connect = refuse
from berth.runtimes.registry import registry
found = registry((sys.argv[1],))
assert not found.refused, found.refused
heavy = {"torch", "vllm", "sglang", "kubernetes", "kopf", "aiohttp", "httpx"} & set(sys.modules)
assert not heavy, heavy
"""


def facts(form: str) -> Facts:
    """A model of 32 layers, about 8 GB, in one of the two formats."""
    blocks = ((0, 32),)
    size = 4096 * 4096 * 2
    kinds = {
        "gguf": ("blk.{}.attn_q.weight", "F16"),
        "safetensors": ("model.layers.{}.q_proj.weight", "BF16"),
    }
    name, kind = kinds[form]
    tensors = tuple(
        TensorGroup(name.replace("q", part, 1), kind, (4096, 4096), size, blocks) for part in "qkvo"
    )
    table = "token_embd.weight" if form == "gguf" else "model.embed_tokens.weight"
    shape = (4096, 32000) if form == "gguf" else (32000, 4096)
    return Facts(
        form,
        "llama" if form == "gguf" else "LlamaForCausalLM",
        vocabulary=32000,
        hparams={
            "block_count": 32, "embedding_length": 4096, "feed_forward_length": 11008, "context_length": 8192,
            "attention.head_count": 32, "attention.head_count_kv": 8, "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": 128, "dtype": "bfloat16",
        },
        tensors=(*tensors, TensorGroup(table, kind, shape, 32000 * 4096 * 2, ())),
    )  # fmt: skip


@pytest.fixture
def engine(berth_runtime: str) -> Runtime:
    """The runtime, out of its entry point."""
    return registry((*BUILT_IN, berth_runtime)).get(berth_runtime)


def job_of(engine: Runtime, profile: dict[str, Any], **more: Any) -> Job:
    """A job under a profile's fields, over the runtime's own defaults."""
    ranks = more.pop("ranks", Ranks())
    fields = ProfileFields.model_validate({**engine.traits.defaults, **profile, **more})
    form = "safetensors" if "safetensors" in engine.traits.formats else "gguf"
    asked = frozenset({*profile, *more})
    hardware = engine.traits.hardware[0]
    return Job(facts(form), fields, hardware=hardware, name=LAUNCH.name, asked=asked, ranks=ranks)


def first(engine: Runtime, profile: dict[str, Any], **more: Any) -> Way:
    """The best way of a job."""
    return engine.ways(job_of(engine, profile, **more))[0]


def launched(
    engine: Runtime, profile: dict[str, Any], launch: Launch = LAUNCH, **more: Any
) -> list[str]:
    """The command of a job's best way."""
    job = job_of(engine, profile, **more)
    fields = job.fields
    whole = replace(
        launch,
        cards=CARDS * max(1, len(job.devices)),
        template=launch.template or tuple(fields.command or ()),
        args=tuple(fields.args or ()),
        values=field_values(fields),
    )
    return engine.command(engine.ways(job)[0].settings, whole)


def errors(engine: Runtime, profile: dict[str, Any], **more: Any) -> str:
    """What blocks a job, as one text."""
    found = engine.check(job_of(engine, profile, **more))
    return "; ".join(finding.text for finding in found if finding.level == "error")


# What it is.


def test_registering_prints_nothing_asks_nobody_and_imports_nothing_heavy(
    berth_runtime: str,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SILENT, berth_runtime], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_its_traits_hold_together(engine: Runtime, berth_runtime: str) -> None:
    traits = engine.traits
    names = [name for one in traits.flags.values() for name in one.every]
    assert (traits.api_version, traits.name) == (API_VERSION, berth_runtime)
    assert sorted(set(names)) == sorted(names), "a flag's name means two settings"
    assert traits.priced | traits.owned <= set(traits.flags)
    assert not traits.priced & traits.owned
    assert traits.hardware
    assert traits.health_path.startswith("/")
    assert traits.spread.kinds <= set(KINDS)


def test_its_declarations_can_be_used(engine: Runtime) -> None:
    traits = engine.traits
    assert all(source.kind == "stdout" or source.path.startswith("/") for source in traits.logs)
    assert all(command and all(command) for command in traits.versions.values())
    assert all(name == name.upper() for name in traits.caches)
    paths = [cache.under("/cache", "f1") for cache in traits.caches.values()]
    assert all("f1" in path and path.startswith("/cache/") for path in paths)
    assert len(set(paths)) == len(paths)


# Its command.


def test_defaults_make_a_command(engine: Runtime, berth_profile: dict[str, Any]) -> None:
    words = launched(engine, berth_profile)
    text = " ".join(words)
    assert words[0]
    assert all(isinstance(word, str) for word in words)
    assert LAUNCH.model in text
    assert str(LAUNCH.port) in text
    assert errors(engine, berth_profile) == ""


def test_every_flag_that_it_writes_is_in_its_flag_map(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    if berth_profile.get("command"):
        pytest.skip("its command is the profile's")
    words = launched(engine, berth_profile)
    unknown = [
        one.name for one in read_flags(engine.traits.flags, words) if one.name and one.key is None
    ]
    assert [name for name in unknown if name not in {"-m", "-c"}] == []


def test_words_with_spaces_stay_whole(engine: Runtime, berth_profile: dict[str, Any]) -> None:
    words = launched(engine, berth_profile, args=["--some-flag", "two words"])
    assert any(LAUNCH.model in word for word in words)
    assert words[-1] == "two words"


def test_an_override_changes_price_and_command(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    small = first(engine, berth_profile, contextLength=1024)
    large = first(engine, berth_profile, contextLength=4096, parallel=2)
    assert (small.context, large.context) == (1024, 4096)
    assert large.estimate.parallel == 2
    assert large.estimate.total >= small.estimate.total > 0
    if not berth_profile.get("command"):
        lines = [launched(engine, berth_profile, contextLength=n) for n in (1024, 4096)]
        assert lines[0] != lines[1]


def test_what_is_priced_on_devices_is_as_many_as_the_job_has(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    for hardware in engine.traits.hardware:
        job = replace(job_of(engine, berth_profile), hardware=hardware)
        for way in engine.ways(job):
            assert len(way.estimate.devices) == way.devices == len(job.devices), way.name
            assert way.estimate.host.total > 0
            assert way.name.split()[0] == hardware


def test_a_template_is_honoured_and_completed(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    template = ("wrapper", "--", "engine", "{model}", "tokens={contextLength}")
    words = launched(
        engine,
        {k: v for k, v in berth_profile.items() if k != "command"},
        replace(LAUNCH, template=template),
        contextLength=2048,
    )
    assert words[:5] == ["wrapper", "--", "engine", LAUNCH.model, "tokens=2048"]
    said = {one.key for one in read_flags(engine.traits.flags, words[3:])}
    assert {"port", "host"} & set(engine.traits.owned) <= said


def test_a_placeholder_that_there_is_not_is_named(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"\{nowhere\}"):
        launched(engine, berth_profile, replace(LAUNCH, template=("x", "{nowhere}")))


def test_skipped_keys_leave_command_template_and_arguments(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    values = {k: f for k, f in engine.traits.flags.items() if f.kind == "value"}
    if not values:
        pytest.skip("it has no flags with values")
    key, one = next(iter(values.items()))
    args = [one.names[0], "77", "--kept", "1"]
    launch = replace(
        LAUNCH, skip=frozenset({key}), template=("engine", "{model}", one.names[0], "78")
    )
    job = job_of(engine, berth_profile)
    words = engine.command(
        engine.ways(job)[0].settings, replace(launch, args=tuple(args), cards=CARDS)
    )
    assert key not in {typed.key for typed in read_flags(engine.traits.flags, words)}
    assert words[-2:] == ["--kept", "1"]


# What it refuses.


def test_flags_that_berth_owns_or_nobody_can_price_are_refused_by_name(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    traits = engine.traits
    owned = [name for key in traits.owned for name in traits.flags[key].names]
    for name in (*owned, *traits.unpriced, *traits.coordination, *traits.revision):
        assert name in errors(engine, berth_profile, args=[name, "1"]), name


def test_a_literal_that_moves_a_byte_is_priced_as_it_is_written(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    if "contextLength" not in engine.traits.priced:
        pytest.skip("its price is what its profile says")
    name = engine.traits.flags["contextLength"].names[0]
    plain = first(engine, berth_profile, contextLength=1024)
    typed = first(engine, berth_profile, contextLength=1024, args=[name, "4096"])
    assert typed.context == 4096
    assert typed.estimate.total > plain.estimate.total
    words = launched(engine, berth_profile, contextLength=1024, args=[name, "4096"])
    said = [
        one.value for one in read_flags(engine.traits.flags, words) if one.key == "contextLength"
    ]
    assert said[-1] == "4096"


def test_arguments_that_mean_nothing_are_named(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    if "contextLength" not in engine.traits.priced:
        pytest.skip("it reads no arguments")
    name = engine.traits.flags["contextLength"].names[0]
    with pytest.raises(ValueError, match=name):
        first(engine, berth_profile, args=[name, "lots"])


def test_code_of_the_models_own_needs_trust(engine: Runtime) -> None:
    other = [name.replace("-", "_").replace("__", "--", 1) for name in engine.traits.code]
    for name in (*engine.traits.code, *other):
        fields = ProfileFields.model_validate({"args": [name]})
        assert runs_own_code(engine.traits, fields) == ["RemoteCode"]


def test_a_key_that_it_does_not_use_is_told(engine: Runtime, berth_profile: dict[str, Any]) -> None:
    unused = {"kvCacheType": {"k": "f16"}, "hostExperts": {"enabled": False}, "cacheRam": "1Gi"}
    for key, value in unused.items():
        found = engine.check(job_of(engine, berth_profile, **{key: value}))
        told = [finding.text for finding in found if key in finding.text]
        assert bool(told) == (key not in engine.traits.known_keys), key


@pytest.mark.parametrize("kind", KINDS)
def test_a_spread_that_it_has_not_is_refused_before_anything_is_placed(
    engine: Runtime, berth_profile: dict[str, Any], kind: str
) -> None:
    told = errors(engine, berth_profile, ranks=Ranks(**{kind: 2}))
    assert (f"no {kind} parallelism" in told) == (kind not in engine.traits.spread.kinds)


def test_more_nodes_than_it_has_are_refused(engine: Runtime, berth_profile: dict[str, Any]) -> None:
    most = engine.traits.spread.most_hosts
    told = errors(engine, berth_profile, ranks=Ranks(tensor=most + 1, hosts=most + 1))
    assert f"{most + 1} were asked for" in told


def test_files_that_it_does_not_read_are_refused(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    job = job_of(engine, berth_profile)
    for form in ("gguf", "safetensors"):
        found = engine.check(replace(job, facts=facts(form)))
        told = any(f.level == "error" and form in f.text for f in found)
        assert told == (form not in engine.traits.formats)


def test_a_probe_is_declared_or_refused(engine: Runtime, berth_profile: dict[str, Any]) -> None:
    for probe in ("Chat", "Responses", "Messages"):
        told = errors(engine, berth_profile, readiness={"probe": probe})
        assert (f"by {probe}" in told) == (probe not in engine.traits.probes)


def test_nodes_are_checked_in_a_dry_run_too(engine: Runtime, berth_profile: dict[str, Any]) -> None:
    job = job_of(engine, berth_profile)
    required = sorted(engine.traits.requires) or [""]
    fitting = [Host(name, (f"NVIDIA {required[0]}",), "image:1") for name in ("a", "b")]
    assert [f for f in engine.prepare(job, fitting) if f.level == "error"] == []
    mixed = [fitting[0], replace(fitting[1], image="image:2")]
    told = [f.text for f in engine.prepare(job, mixed)]
    assert any("one image" in text for text in told) == (not engine.traits.has_mixed_images)
    other = [Host("a", ("NVIDIA Something Else",), "image:1")]
    assert bool(list(engine.prepare(job, other))) == bool(engine.traits.requires)


# Groups.


def test_members_of_a_group_meet_at_the_head_or_there_is_no_group(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    way = first(engine, berth_profile)
    members = [Member(rank, 2, "head.example") for rank in (0, 1)]
    if engine.traits.spread.most_hosts == 1:
        with pytest.raises(ValueError, match="one node"):
            engine.node_command(way.settings, LAUNCH, members[1])
        return
    lines = [engine.node_command(way.settings, LAUNCH, member) for member in members]
    assert all("head.example" in " ".join(words) for words in lines)
    assert all("25000" in " ".join(words) for words in lines)
    assert lines[0] != lines[1]


def test_the_world_is_as_many_ranks_as_devices(engine: Runtime) -> None:
    assert engine.world_size(Ranks()) == 1
    assert engine.world_size(Ranks(tensor=2, pipeline=3)) == 6


# It keeps nothing.


def test_inputs_and_the_instance_stay_as_they_were(
    engine: Runtime, berth_profile: dict[str, Any]
) -> None:
    job = job_of(engine, berth_profile, contextLength=1024)
    before, kept = copy.deepcopy(job), copy.deepcopy(vars(engine))
    way = engine.ways(job)[0]
    launch = replace(LAUNCH, template=tuple(job.fields.command or ()), cards=CARDS)
    again = [
        (
            list(engine.check(job)),
            engine.command(way.settings, launch),
            engine.environment(way.settings),
        )
        for _ in range(2)
    ]
    assert again[0] == again[1]
    assert (job, vars(engine)) == (before, kept)


def test_a_failure_leaves_nothing_behind(engine: Runtime, berth_profile: dict[str, Any]) -> None:
    before = launched(engine, berth_profile)
    with pytest.raises(ValueError, match="placeholder"):
        launched(engine, berth_profile, replace(LAUNCH, template=("{nothing.there}",)))
    assert launched(engine, berth_profile) == before


def test_nothing_is_printed_or_written(
    engine: Runtime,
    berth_profile: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    launched(engine, berth_profile)
    assert (capsys.readouterr(), list(tmp_path.iterdir())) == (("", ""), [])
