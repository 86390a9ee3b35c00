"""Overrides over profile, field by field; and what makes a runner's settings old."""

from typing import Any

import pytest

from berth.api.model import Model
from berth.api.profile import Profile
from berth.controller.resolve import resolve, settings_hash, source_hash
from controller.objects import meta, model


def _profile(**spec: Any) -> Profile:
    return Profile.model_validate({"metadata": meta("p", "ns"), "spec": spec})


def _model(**spec: Any) -> Model:
    return Model.model_validate(model(**spec))


def _hash(**spec: Any) -> str:
    found = _model(**spec)
    return settings_hash(found, resolve(found, None), "d")


def test_the_models_override_wins_field_by_field_and_lists_as_a_whole() -> None:
    fields = resolve(
        _model(overrides={"parallel": 4, "kvCacheType": {"v": "q8_0"}, "args": ["-x"]}),
        _profile(
            parallel=2,
            contextLength=8192,
            kvCacheType={"k": "q4_0", "v": "q4_0"},
            args=["-y", "-z"],
        ),
    )
    assert (fields.parallel, fields.context_length, fields.args) == (4, 8192, ["-x"])
    assert fields.kv_cache_type is not None
    assert (fields.kv_cache_type.k, fields.kv_cache_type.v) == ("q4_0", "q8_0")


def test_what_nobody_says_stays_open() -> None:
    fields = resolve(_model(), None)
    assert fields.model_dump(exclude_none=True) == {}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"overrides": {"drain": {"timeout": "10s"}}}, id="drain"),
        pytest.param({"overrides": {"loadTimeout": "10s"}}, id="load timeout"),
        pytest.param({"overrides": {"hangTimeout": "10s"}}, id="hang timeout"),
        pytest.param({"minReplicas": 2}, id="replicas"),
        pytest.param({"idleTimeout": "1m"}, id="idle timeout"),
    ],
)
def test_what_does_not_change_the_engine_replaces_no_runner(spec: dict[str, Any]) -> None:
    assert _hash(**spec) == _hash()


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"overrides": {"contextLength": 8192}}, id="context"),
        pytest.param({"overrides": {"args": ["-x"]}}, id="arguments"),
        pytest.param({"overrides": {"images": {"cpu": "x"}}}, id="an image of its own"),
        pytest.param({"id": "another"}, id="id"),
    ],
)
def test_what_changes_the_engine_does(spec: dict[str, Any]) -> None:
    assert _hash(**spec) != _hash()


def test_other_files_make_other_hashes_whatever_the_settings() -> None:
    found = _model()
    fields = resolve(found, None)
    assert settings_hash(found, fields, "d1") != settings_hash(found, fields, "d2")
    assert source_hash(_model()) == source_hash(_model(minReplicas=1))
    assert source_hash(_model()) != source_hash(_model(source={"url": {"uri": "https://b/c"}}))


def test_variables_in_another_order_are_the_same_settings() -> None:
    one, two = {"name": "A", "value": "1"}, {"name": "B"}
    assert _hash(overrides={"env": [one, two]}) == _hash(overrides={"env": [two, one]})
    assert _hash(overrides={"env": [one, two]}) != _hash(overrides={"env": [one]})
