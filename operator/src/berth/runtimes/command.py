"""How is any other server run that speaks OpenAI's API? By the profile's own command.

Nobody can tell what it takes: the profile says so in ``memory.peak``, and that is what is claimed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from berth.estimator import Buffers, Estimate, HostNeeds, Kinds
from berth.runtimes.base import Api, Finding, Job, Launch, Probe, Runtime, Spread, Traits, Way
from berth.runtimes.template import compose
from berth.units import Bytes, GiB, parse_quantity

HOST_BESIDE = GiB
"""Host memory of a server whose model is on devices, unless its resources ask for more."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What its profile says that it takes, in bytes."""

    peak: int


class Command(Runtime):
    """The runtime ``command``."""

    traits = Traits(
        name="command",
        hardware=("cuda", "cpu"),
        known_keys=frozenset(
            {"kvCacheType", "batchSize", "microBatchSize", "flashAttention", "threads"}
        ),
        takes=frozenset({"projector", "draft"}),
        probes=(Probe.CHAT, Probe.RESPONSES, Probe.MESSAGES),
        apis=frozenset(Api),
        spread=Spread(kinds=frozenset({"tensor", "data"})),
        has_prefix_cache=False,
    )

    def ways(self, job: Job) -> Sequence[Way]:
        """One way on each hardware: the peak shared out equally over its devices, or on the host."""
        peak = _peak(job)
        count = len(job.devices)
        context = job.fields.context_length or job.facts.context_length or 0
        parallel = job.fields.parallel or 1
        each = Bytes(-(-peak // count)) if count else Bytes(0)
        estimate = Estimate(
            buffers={device.name: Buffers(model=each) for device in job.devices},
            kinds=Kinds(outside=peak),
            host=HostNeeds(anonymous=_host(job, peak)),
            devices=tuple((device.name, each) for device in job.devices),
            tokens=context * parallel,
            per_request=context,
            parallel=parallel,
            sure=False,
            notes=("what it takes is what its profile says in memory.peak",),
        )
        return [Way(job.hardware, Claimed(peak), estimate, context, devices=count)]

    def check(self, job: Job) -> Sequence[Finding]:
        """A command and a peak are the profile's to give."""
        lacking = [
            text
            for there, text in (
                (job.fields.command, "the runtime command needs a profile's command"),
                (
                    _peak(job),
                    "the runtime command needs memory.peak: nobody else can say what it takes",
                ),
            )
            if not there
        ]
        return [*(Finding("error", text) for text in lacking), *super().check(job)]

    def command(self, settings: Claimed, launch: Launch) -> list[str]:
        """The template with its placeholders filled in."""
        return compose(self.traits, (), launch)


def _peak(job: Job) -> int:
    said = job.fields.memory.peak if job.fields.memory else None
    return parse_quantity(said) if said else 0


def _host(job: Job, peak: int) -> int:
    if not job.devices:
        return peak
    asked = job.fields.resources.requests.get("memory") if job.fields.resources else None
    return max(HOST_BESIDE, parse_quantity(asked) if asked else 0)
