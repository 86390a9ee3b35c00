"""What exactly does a Runner say? A decision of the planner, made into an object."""

from collections.abc import Mapping
from dataclasses import dataclass

from berth.api.meta import SecretKeyRef
from berth.api.model import Model
from berth.api.runner import Claim as WireClaim
from berth.api.runner import DeviceClaim, ModelRef, RunnerSpec
from berth.controller.observe_models import drain_timeout_s, load_timeout_s
from berth.controller.priced import Priced
from berth.controller.variants import Variant, variant_of
from berth.manifests.names import runner_name
from berth.planner.actions import Prepare, Reserve
from berth.planner.state import Claim, Node


@dataclass(frozen=True)
class Stamp:
    """Who decided: the leader's epoch and the pass."""

    epoch: int
    pass_id: str


def runner_spec(
    decision: Prepare | Reserve,
    model: Model,
    priced: Priced,
    *,
    nodes: Mapping[str, Node],
    stamp: Stamp,
) -> RunnerSpec:
    """The spec of a new Runner. What was priced is what is launched."""
    variant = variant_of(priced.variants, decision.need.variant)
    disk = sum(file.size for file in priced.files) if priced.mount is None else 0
    return RunnerSpec(
        model_ref=ModelRef(
            name=model.metadata.name, uid=model.metadata.uid, generation=model.metadata.generation
        ),
        profile=priced.profile,
        ordinal=decision.ordinal,
        attempt=decision.attempt,
        epoch=stamp.epoch,
        pass_id=stamp.pass_id,
        stage="Reserved" if isinstance(decision, Reserve) else "Preparing",
        node_name=decision.place.node,
        claim=wire_claim(decision, variant, nodes, disk=disk),
        files=list(priced.files),
        mount=priced.mount,
        token_secret_ref=_token(model),
        runtime=priced.runtime,
        image=variant.image,
        command=list(variant.command),
        env=list(variant.env),
        port=variant.port,
        parallel=priced.parallel,
        context_length=priced.context_length,
        settings_hash=priced.settings_hash,
        tolerations=list(model.spec.tolerations),
        node_selector=dict(model.spec.node_selector),
        resources=priced.fields.resources,
        pod_template=priced.fields.pod_template,
        **_timeouts(priced, variant),
    )


def _timeouts(priced: Priced, variant: Variant) -> dict[str, int]:
    return {
        "load_timeout_seconds": round(load_timeout_s(priced)),
        "hang_timeout_seconds": round(variant.hang_timeout_s),
        "drain_timeout_seconds": round(drain_timeout_s(priced)),
    }


def name_of(decision: Prepare | Reserve, model: Model) -> str:
    meta = model.metadata
    return runner_name(
        meta.namespace, meta.name, ordinal=decision.ordinal, attempt=decision.attempt
    )


def wire_claim(
    decision: Prepare | Reserve, variant: Variant, nodes: Mapping[str, Node], *, disk: int
) -> WireClaim:
    """The claim with each device's index, as people and printer columns read it."""
    node = nodes.get(decision.place.node)
    indexes = {device.uuid: device.index for device in node.devices} if node else {}
    return WireClaim(
        host=decision.claim.host,
        host_file_pages=min(variant.host_file_pages, decision.claim.host),
        devices=[
            DeviceClaim(device=uuid, index=indexes.get(uuid, 0), memory=size)
            for uuid, size in _merged(decision.claim).items()
        ],
        disk=disk,
    )


def _merged(claim: Claim) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for uuid, size in claim.devices:
        sizes[uuid] = sizes.get(uuid, 0) + size
    return sizes


def _token(model: Model) -> SecretKeyRef | None:
    hub = model.spec.source.hugging_face
    return hub.token_secret_ref if hub else None
