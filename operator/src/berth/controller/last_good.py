"""How is the launch of the runner that was last up kept, so that it can be made again as it was?

The Profile that it came from may have been changed in place, its source may be another by now: what is
kept is the Runner's own spec, less what belongs to one place and one moment.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from berth.api.profile import Drain, ProfileFields
from berth.api.runner import RunnerSpec
from berth.controller.priced import Priced
from berth.controller.variants import Variant
from berth.planner.state import Need
from berth.runtimes.base import Job, Launch, Member, Runtime, Traits, Way
from berth.runtimes.template import launch_values
from berth.runtimes.told import told_traits
from berth.units import Bytes

FORM = "berth1:"
LONGEST = 65_536
"""Characters of a record: beside the facts of its header a Model stays under 256 KiB."""
LONGEST_TEXT = 4 << 20
"""Bytes of a record unpacked; a status is written by others than us, too."""
VARIANT = "last-good"
_OF_THE_MOMENT = frozenset(
    {
        "modelRef", "ordinal", "attempt", "epoch", "passId", "stage", "nodeName", "drain",
        "tolerations", "nodeSelector", "smokeTest", "group",
    }
)  # fmt: skip


class _AsItWas(Runtime):
    """A runtime that starts what it is given, word by word."""

    def __init__(self, traits: Traits) -> None:
        self.traits = traits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AsItWas) and other.traits == self.traits

    def __hash__(self) -> int:
        return hash(self.traits.name)

    def ways(self, job: Job) -> Sequence[Way]:
        """None: it was priced when it was first started."""
        return ()

    def command(self, settings: Any, launch: Launch) -> list[str]:
        """The words of then."""
        return list(settings[0])

    def node_command(self, settings: Any, launch: Launch, member: Member) -> list[str]:
        """Those of one member of a group."""
        return list(settings[member.rank])


_NOWHERE = Launch(model="", name="")
_FILLED = replace(_NOWHERE, values={name: f"{{{name}}}" for name in launch_values(_NOWHERE)})
"""Placeholders were filled in when it was first started; what looks like one now is meant so."""


def record_of(spec: RunnerSpec, ranks: Sequence[RunnerSpec] = ()) -> str:
    """The launch as text; empty when it is too long to be kept. ``ranks``: the group's other members."""
    kept = {name: value for name, value in spec.wire().items() if name not in _OF_THE_MOMENT}
    if spec.mount is not None:
        # Files that lie on a node or a claim are known to be there, and nowhere else.
        kept["nodeName"] = spec.node_name
    if ranks:
        kept["ranks"] = [list(member.command) for member in ranks]
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    record = FORM + base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    return record if len(record) <= LONGEST else ""


def priced_of_record(record: str) -> Priced | None:
    """The launch as it would be priced now; None when there is none, or it cannot be read."""
    try:
        return _priced(*_unpacked(record))
    except (ValueError, KeyError, TypeError, zlib.error):
        return None


def _unpacked(record: str) -> tuple[RunnerSpec, tuple[tuple[str, ...], ...]]:
    if not record.startswith(FORM):
        raise ValueError("not a record of this form")
    unpack = zlib.decompressobj()
    text = unpack.decompress(base64.b85decode(record[len(FORM) :]), LONGEST_TEXT)
    if unpack.unconsumed_tail:
        raise ValueError("the record is too long")
    kept = json.loads(text)
    ranks = tuple(tuple(str(word) for word in words) for words in kept.pop("ranks", ()))
    moment = {"modelRef": {"name": "x", "uid": ""}, "nodeName": "x"}
    return RunnerSpec.model_validate(moment | kept), ranks


def _priced(spec: RunnerSpec, ranks: tuple[tuple[str, ...], ...]) -> Priced:
    claim = spec.claim
    need = Need(
        # The copy that it ran beside may be gone.
        host=Bytes(claim.host + claim.host_copied),
        file_pages=Bytes(claim.host_file_pages + claim.host_copied),
        gpus=tuple(Bytes(device.memory) for device in claim.devices),
        hosts=1 + len(ranks),
        text="as it was last up",
        variant=VARIANT,
    )
    variant = Variant(
        name=VARIANT,
        image=spec.image,
        runtime=_AsItWas(told_traits(spec)),
        settings=(tuple(spec.command), *ranks),
        launch=_FILLED,
        env={one.name: one.value for one in spec.env},
        port=spec.port,
        host_file_pages=claim.host_file_pages + claim.host_copied,
        hang_timeout_s=float(spec.hang_timeout_seconds),
    )
    return Priced(
        settings_hash=spec.settings_hash,
        profile=spec.profile,
        fields=ProfileFields(
            load_timeout=f"{spec.load_timeout_seconds}s",
            drain=Drain(timeout=f"{spec.drain_timeout_seconds}s"),
            resources=spec.resources,
            pod_template=spec.pod_template,
            pre_exec=spec.pre_exec or None,
        ),
        runs_code=tuple(spec.runs_code),
        runtime=spec.runtime,
        context_length=spec.context_length,
        parallel=spec.parallel,
        needs=(need,),
        variants=(variant,),
        files=tuple(spec.files),
        mount=spec.mount,
        local_nodes=frozenset({spec.node_name}) if spec.mount is not None else None,
        token=spec.token_secret_ref,
    )


def in_place_of(asked: Priced, good: Priced) -> Priced:
    """What was good, launched instead of what is asked for; what people read of the header is the Model's."""
    return replace(
        good,
        source_hash=asked.source_hash,
        generation=asked.generation,
        facts=asked.facts,
        shown=asked.shown,
    )
