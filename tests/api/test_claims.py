"""Files on a claim: a pod looks at them, the model goes where its volume can be seen, and answers."""

from typing import Any

from api.bay import GIB, Bay
from fakes.gguf import sparse_llama
from fakes.inspecting import HOLD


def _inspecting(bay: Bay) -> list[dict[str, Any]]:
    return [pod for pod in bay.pods() if "berth.dev/inspects" in pod["metadata"]["labels"]]


async def test_a_model_on_a_claim_answers_from_a_node_that_sees_the_volume(bay: Bay) -> None:
    bay.node("roomy", memory=256 * GIB)
    node = bay.node("sees", memory=32 * GIB)
    folder = bay.claim("weights", node=node)
    sparse_llama(folder / "llama" / "m.gguf", weights=2 * GIB)
    model = bay.claim_model("m", "llama/m.gguf")
    status = bay.wait_needs(model)["status"]
    assert status["needs"]["weights"] > 2 * GIB
    assert status["facts"]["architecture"] == "llama"
    assert bay.runners() == []
    await bay.until("the inspecting pod is gone", lambda: not _inspecting(bay))
    assert (await bay.ask(model)).status_code == 200
    (pod,) = bay.pods()
    assert pod["spec"]["nodeName"] == node
    volume = {"claimName": "weights", "readOnly": True}
    assert {"name": "models", "persistentVolumeClaim": volume} in pod["spec"]["volumes"]
    (runner,) = bay.runners()
    assert "/models/llama/m.gguf" in runner["spec"]["command"]
    assert len(bay.created_pods()) == 2


async def test_a_missing_claim_is_named_and_found_once_it_is_there(bay: Bay) -> None:
    bay.node()
    model = bay.claim_model("m", "m.gguf")
    await bay.until(
        "the claim is missed",
        lambda: bay.condition(model, "HeaderRead").get("reason") == "ClaimNotFound",
    )
    told = bay.condition(model, "HeaderRead")
    assert (told["status"], told["reason"]) == ("False", "ClaimNotFound")
    assert f"no PersistentVolumeClaim weights in namespace {bay.name}" in told["message"]
    assert (await bay.ask(model)).status_code == 503
    sparse_llama(bay.claim("weights") / "m.gguf", weights=GIB)
    bay.wait_needs(model)


async def test_a_file_that_is_none_is_told_and_another_one_is_looked_at(bay: Bay) -> None:
    bay.node()
    folder = bay.claim("weights")
    (folder / "bad.gguf").write_bytes(b"GGUF")
    sparse_llama(folder / "good.gguf", weights=GIB)
    model = bay.claim_model("m", "bad.gguf")
    await bay.until(
        "the file is refused",
        lambda: bay.condition(model, "HeaderRead").get("reason") == "InvalidGGUF",
    )
    assert bay.condition(model, "HeaderRead")["status"] == "False"
    assert len(_inspecting(bay)) == 1, "kept, for people to look at"
    assert "needs" not in bay.get(model)["status"]
    bay.claim_model("m", "good.gguf")
    bay.wait_needs(model)
    assert bay.condition(model, "HeaderRead")["status"] == "True"
    await bay.until("no inspecting pod is left", lambda: not _inspecting(bay))


async def test_a_suspended_model_is_looked_at_too(bay: Bay) -> None:
    bay.node()
    sparse_llama(bay.claim("weights") / "m.gguf", weights=GIB)
    bay.wait_needs(bay.claim_model("m", "m.gguf", suspend=True))
    assert bay.runners() == []


async def test_a_controller_that_starts_anew_goes_on_with_the_same_pod(bay: Bay) -> None:
    bay.node()
    folder = bay.claim("weights")
    sparse_llama(folder / "m.gguf", weights=GIB)
    (folder / HOLD).touch()
    model = bay.claim_model("m", "m.gguf")
    await bay.until("a pod looks", lambda: _inspecting(bay))
    bay.stack.plane.processes.kill("controller")
    bay.stack.start_program("controller")
    (folder / HOLD).unlink()
    bay.wait_needs(model)
    assert len(bay.created_pods()) == 1


async def test_an_image_is_refused_with_what_to_do(bay: Bay) -> None:
    bay.apply_model("m", {"source": {"image": {"reference": "models.example/gemma:1"}}})
    model = f"{bay.name}-m"
    await bay.until("it is refused", lambda: bay.condition(model, "Accepted"))
    await bay.until(
        "it is refused", lambda: bay.condition(model, "Accepted")["reason"] == "Unsupported"
    )
    told = bay.condition(model, "Accepted")
    assert told["status"] == "False"
    assert "put the files on a claim" in told["message"]
