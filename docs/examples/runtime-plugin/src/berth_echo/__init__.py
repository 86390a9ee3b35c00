"""How is echo-serve run? An example: a made-up server of safetensors models, on CPUs alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from berth.estimator import Estimate, HostNeeds, Kinds
from berth.runtimes.base import Api, Counters, Job, Launch, Probe, Runtime, Traits, Way
from berth.runtimes.flags import flag, read_flags, write_flags
from berth.runtimes.template import compose, priced_words

FLAGS = {
    "contextLength": flag("--context"),
    "parallel": flag("--requests"),
    "model": flag("--weights"),
    "name": flag("--as"),
    "host": flag("--host"),
    "port": flag("--port"),
}


@dataclass(frozen=True)
class Settings:
    """What decides its bytes."""

    context: int
    parallel: int


class Echo(Runtime):
    """The runtime ``echo``."""

    traits = Traits(
        name="echo",
        hardware=("cpu",),
        flags=FLAGS,
        priced=frozenset({"contextLength", "parallel"}),
        owned=frozenset({"model", "name", "host", "port"}),
        formats=frozenset({"safetensors"}),
        probes=(Probe.CHAT,),
        apis=frozenset({Api.CHAT}),
        counters=Counters(busy=("echo_in_hand",), prompt_tokens="echo_read", tokens="echo_written"),
        versions={"echo": ("echo-serve", "--version")},
    )

    def ways(self, job: Job) -> Sequence[Way]:
        """One: the weights, and 100 kB for each token of context."""
        settings = self._settings(job)
        tokens = settings.context * settings.parallel
        cache = tokens * 100_000
        estimate = Estimate(
            buffers={},
            kinds=Kinds(weights=job.facts.weight_bytes, kv_cache=cache),
            host=HostNeeds(anonymous=job.facts.weight_bytes + cache),
            devices=(),
            tokens=tokens,
            per_request=settings.context,
            parallel=settings.parallel,
        )
        return [Way("cpu", settings, estimate, settings.context)]

    def command(self, settings: Settings, launch: Launch) -> list[str]:
        """Everything that was priced is written."""
        values = {
            "model": launch.model,
            "name": launch.name,
            "host": launch.host,
            "port": launch.port,
            "contextLength": settings.context,
            "parallel": settings.parallel,
        }
        return compose(self.traits, ["echo-serve", *write_flags(FLAGS, values)], launch)

    def _settings(self, job: Job) -> Settings:
        context = job.fields.context_length or job.facts.context_length or 0
        parallel = job.fields.parallel or 1
        for one in read_flags(FLAGS, priced_words(job.fields)):
            context = _number(one.words) if one.key == "contextLength" else context
            parallel = _number(one.words) if one.key == "parallel" else parallel
        return Settings(context, parallel)


def _number(words: tuple[str, ...]) -> int:
    try:
        return int(words[-1].rpartition("=")[2])
    except ValueError as err:
        raise ValueError(f"{' '.join(words)}: not a number") from err
