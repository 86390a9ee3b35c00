"""Two Models with one id: the elder holds it."""

from berth.api.meta import timestamp
from berth.api.model import Model
from berth.controller.ids import SharedId, shared_ids
from controller.objects import NOW, model


def _model(name: str, age: float, uid: str = "", **spec: object) -> Model:
    created = {"creationTimestamp": timestamp(NOW - age)} | ({"uid": uid} if uid else {})
    return Model.model_validate(model(name, meta=created, **spec))


def test_the_younger_is_told() -> None:
    models = [_model("young", 1, id="Qwen"), _model("old", 9, id="Qwen"), _model("other", 5)]
    assert shared_ids(models) == {"ns/young": SharedId("Qwen", "ns/old")}


def test_an_alias_counts_as_an_id_and_case_matters() -> None:
    models = [_model("a", 9, aliases=["x", "y"]), _model("b", 5, id="y"), _model("c", 1, id="X")]
    assert shared_ids(models) == {"ns/b": SharedId("y", "ns/a")}


def test_of_one_second_the_lower_uid() -> None:
    models = [_model("a", 5, uid="2", id="x"), _model("b", 5, uid="1", id="x")]
    assert shared_ids(models) == {"ns/a": SharedId("x", "ns/b")}
