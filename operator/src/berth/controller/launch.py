"""What exactly does a Runner say? A decision of the planner, made into an object."""

from collections.abc import Mapping
from dataclasses import dataclass

from berth.api.meta import EnvVar, SecretKeyRef
from berth.api.model import Model
from berth.api.runner import Claim as WireClaim
from berth.api.runner import DeviceClaim, GroupMember, ModelRef, RunnerSpec
from berth.controller.observe_models import drain_timeout_s, load_timeout_s
from berth.controller.priced import Priced
from berth.controller.resolve import digest_of
from berth.controller.smoke import readiness_request
from berth.controller.variants import Variant, variant_of
from berth.controller.warm import warm_files
from berth.manifests.names import runner_name
from berth.planner.actions import Prepare, Reserve, Seat, seats_of
from berth.planner.state import Claim, Need, Node
from berth.runtimes.template import fill, launch_values, layered
from berth.runtimes.told import engine_traits

CACHES_PATH = "/tmp/cache"
"""Of what engines compile; in the pod's own folder, and gone with it."""


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
    rank: int = 0,
) -> RunnerSpec:
    """The spec of a new Runner, of a group the one of this rank. What was priced is what is launched."""
    variant = variant_of(priced.variants, decision.need.variant)
    seat = seats_of(decision)[rank]
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
        node_name=seat.place.node,
        claim=wire_claim(seat, variant, nodes, need=decision.need, disk=disk),
        files=list(priced.files),
        mount=priced.mount,
        token_secret_ref=priced.token or _token(model),
        runtime=priced.runtime,
        image=variant.image,
        command=variant.words(rank, 1 + len(decision.seats), cards_of(seat, nodes)),
        env=environment_of(variant, priced, nodes.get(seat.place.node)),
        port=variant.port,
        parallel=priced.parallel,
        context_length=priced.context_length,
        settings_hash=priced.settings_hash,
        variant=variant.name,
        tolerations=list(model.spec.tolerations),
        node_selector=dict(model.spec.node_selector),
        resources=priced.fields.resources,
        pod_template=priced.fields.pod_template,
        pre_exec=pre_exec_of(variant, priced),
        keep_warm=[file.name for file in warm_files(priced.fields, priced.files)][:64],
        runs_code=list(priced.runs_code),
        smoke_test=None if rank else priced.smoke or readiness_request(model, priced),
        engine=engine_traits(variant.runtime.traits, _health_path(priced)),
        group=_member(decision, model, rank),
        **_timeouts(priced, variant),
    )


def _health_path(priced: Priced) -> str | None:
    return priced.fields.readiness.path if priced.fields.readiness else None


def _member(decision: Prepare | Reserve, model: Model, rank: int) -> GroupMember | None:
    if not decision.seats:
        return None
    return GroupMember(head=name_of(decision, model), rank=rank, size=1 + len(decision.seats))


def cards_of(seat: Seat, nodes: Mapping[str, Node]) -> tuple[int, ...]:
    """Bytes of each device of a place, in the order of the claim."""
    node = nodes.get(seat.place.node)
    sizes = {device.uuid: int(device.capacity) for device in node.devices} if node else {}
    return tuple(sizes.get(uuid, int(claimed)) for uuid, claimed in seat.claim.devices)


def pre_exec_of(variant: Variant, priced: Priced) -> list[list[str]]:
    """The steps before the engine, with their placeholders filled in."""
    values = launch_values(variant.launch)
    return [[fill(word, values) for word in step] for step in priced.fields.pre_exec or ()]


def environment_of(variant: Variant, priced: Priced, node: Node | None) -> list[EnvVar]:
    """The engine's variables: every layer, the lowest first, with its placeholders filled in."""
    traits = variant.runtime.traits
    asked = {one.name: one.value for one in priced.fields.env or ()}
    fingerprint = digest_of([variant.image, variant.command()])
    caches = {name: path.under(CACHES_PATH, fingerprint) for name, path in traits.caches.items()}
    layers = (
        variant.env,
        traits.hardware_env.get(variant.hardware, {}),
        dict(node.policy.env) if node else {},
        asked,
        caches,
    )
    merged = layered(layers, launch_values(variant.launch))
    return [EnvVar(name=name, value=value) for name, value in merged.items()]


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
    seat: Seat, variant: Variant, nodes: Mapping[str, Node], *, need: Need, disk: int
) -> WireClaim:
    """The claim with each device's index, as people and printer columns read it."""
    node = nodes.get(seat.place.node)
    indexes = {device.uuid: device.index for device in node.devices} if node else {}
    # What copies on the node hold is not in the claim, and none of this pod's to charge.
    carried = max(0, need.host - seat.claim.host)
    return WireClaim(
        host=seat.claim.host,
        host_file_pages=min(max(0, variant.host_file_pages - carried), seat.claim.host),
        host_copied=carried,
        devices=[
            DeviceClaim(device=uuid, index=indexes.get(uuid, 0), memory=size)
            for uuid, size in _merged(seat.claim).items()
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
