"""What can be wrong with a job, whatever the engine? Errors block a launch, warnings are shown."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from berth.runtimes.base import Finding, Host, Job, Probe, Ranks, Traits
from berth.runtimes.flags import Typed, dashed, read_flags, unabbreviated

if TYPE_CHECKING:
    from berth.api.profile import ProfileFields

COMMON_KEYS = frozenset(
    {
        "runtime", "images", "contextLength", "maxContextLength", "parallel", "parallelism", "args", "env", "command",
        "memory", "keepWarm", "preExec", "readiness", "smokeTest", "loadTimeout", "hangTimeout", "drain",
        "resources", "podTemplate",
    }
)  # fmt: skip
"""Profile fields that Berth itself uses, whatever the runtime."""


def check_job(traits: Traits, job: Job) -> list[Finding]:
    """Every finding, errors first.

    1. Each key that is set is one that the runtime uses. 2. It reads the files' format and loads what goes with them.
    3. It can be spread so. 4. Literal flags leave alone what Berth owns. 5. It can answer the probe that is asked.
    """
    found = [
        *_keys(traits, job.asked),
        *_files(traits, job),
        *check_spread(traits, job.ranks),
        *_template(job.fields),
        *_literals(traits, job.fields, job.asked),
        *_probe(traits, job.fields),
    ]
    return sorted(
        found, key=lambda finding: ("error", "warning", "suggestion").index(finding.level)
    )


def check_spread(traits: Traits, ranks: Ranks) -> Iterator[Finding]:
    """Whether the engine can be spread so; told before anything is placed."""
    spread = traits.spread
    for kind in ("tensor", "pipeline", "data", "expert", "context"):
        width = getattr(ranks, kind)
        if width > 1 and kind not in spread.kinds:
            yield Finding(
                "error", f"{traits.name} has no {kind} parallelism; {width} were asked for"
            )
    if ranks.hosts > spread.most_hosts:
        most = f"at most {spread.most_hosts}" if spread.most_hosts > 1 else "one"
        yield Finding("error", f"{traits.name} runs on {most} node; {ranks.hosts} were asked for")
    size = ranks.tensor * ranks.pipeline * ranks.data * ranks.context
    if size % ranks.hosts:
        yield Finding(
            "error", f"{size} ranks cannot be shared out equally over {ranks.hosts} nodes"
        )
    if spread.replica_domains and ranks.data > 1 and ranks.hosts > 1 and ranks.data % ranks.hosts:
        yield Finding(
            "error", f"{ranks.data} replicas cannot be shared out equally over {ranks.hosts} nodes"
        )


def check_hosts(traits: Traits, job: Job, hosts: Sequence[Host]) -> list[Finding]:
    """Whether the nodes that were chosen fit: each has every device that is required, and one image serves all."""
    found = []
    for host in hosts:
        lacking = [name for name in host.devices if not _is_one_of(traits.requires, name)]
        if traits.requires and (lacking or not host.devices):
            wanted = " or ".join(sorted(traits.requires))
            has = ", ".join(sorted(set(lacking))) or "no GPU"
            found.append(
                Finding("error", f"{traits.name} needs {wanted}; node {host.name} has {has}")
            )
    images = sorted({host.image for host in hosts})
    if len(images) > 1 and not traits.has_mixed_images:
        found.append(
            Finding("error", f"a group of {traits.name} runs one image, not {' and '.join(images)}")
        )
    return found


def _is_one_of(required: frozenset[str], name: str) -> bool:
    return any(word.lower() in name.lower() for word in required)


def _keys(traits: Traits, asked: frozenset[str]) -> Iterator[Finding]:
    for key in sorted(asked):
        if key not in COMMON_KEYS | traits.known_keys:
            yield Finding("warning", f"{traits.name} does not use {key}: it has no effect")


def _files(traits: Traits, job: Job) -> Iterator[Finding]:
    if job.facts.format not in traits.formats:
        known = " or ".join(sorted(traits.formats))
        yield Finding("error", f"{traits.name} loads {known} files, these are {job.facts.format}")
    beside = {"projector": job.projector, "adapters": job.adapters, "draft": job.draft}
    for name, there in beside.items():
        if there and name not in traits.takes:
            yield Finding("error", f"the runtime {traits.name} does not load a model's {name} here")


def _template(fields: "ProfileFields") -> Iterator[Finding]:
    """A command that does not take the model's path would fetch one for itself."""
    if fields.command and not any("{model}" in word for word in fields.command):
        yield Finding(
            "error",
            "the command has no {model}: engines load the files that were verified, no others",
        )


def _literals(traits: Traits, fields: "ProfileFields", asked: frozenset[str]) -> Iterator[Finding]:
    args, template = fields.args or [], (fields.command or [])[1:]
    try:
        typed = [(one, False) for one in read_flags(traits.flags, args)]
        typed += [(one, True) for one in read_flags(traits.flags, template)]
    except ValueError as err:
        yield Finding("error", str(err))
        return
    for one, in_template in typed:
        if one.name:
            yield from _literal(traits, one, asked, in_template=in_template)


def _literal(
    traits: Traits, one: Typed, keys: frozenset[str], *, in_template: bool
) -> Iterator[Finding]:
    """One literal flag. First that applies:

    1. What the ranks of a group find each other by is Berth's. 2. What nobody can price is refused.
    3. What Berth owns may be written in a template with its placeholder, and nowhere else.
    4. A revision is the verified one. 5. An abbreviation of one that counts is refused: it would hide it.
    6. One that hides a field that is set is told.
    """
    typed = one.words[0].partition("=")[0].partition(".")[0]
    names = {one.name, typed, dashed(typed)}
    whole = f"{one.name} is not yours to set for {traits.name}"
    if names & set(traits.coordination):
        yield Finding("error", f"{whole}: Berth tells the members of a group where they meet")
    elif names & set(traits.unpriced):
        yield Finding("error", f"{whole}: the memory that it takes cannot be worked out")
    elif one.key in traits.owned and not (in_template and _is_hole(one)):
        yield Finding("error", f"{whole}: Berth passes it, from what was planned")
    elif names & set(traits.revision) and "{revision}" not in one.words[-1]:
        yield Finding(
            "error", f"{whole}: files are those of the verified revision; write {{revision}}"
        )
    elif one.key is None and (longer := unabbreviated(_names(traits), one.name)):
        yield Finding("error", f"{one.name} begins {longer}: write flags whole")
    elif one.key in keys and not _is_hole(one):
        yield Finding("warning", f"{' '.join(one.words)} hides {one.key}, which is set too")


def _names(traits: Traits) -> list[str]:
    """Every flag that counts."""
    known = [name for one in traits.flags.values() for name in one.every]
    return [*known, *traits.unpriced, *traits.coordination, *traits.code, *traits.revision]


def _is_hole(one: Typed) -> bool:
    return "{" in one.words[-1]


def _probe(traits: Traits, fields: "ProfileFields") -> Iterator[Finding]:
    asked = fields.readiness.probe if fields.readiness else "None"
    if asked != "None" and Probe(asked) not in traits.probes:
        able = ", ".join(traits.probes) or "none"
        yield Finding("error", f"{traits.name} cannot be probed by {asked}; its probes are: {able}")


def _typed_names(words: list[str]) -> set[str]:
    """Every word as a flag's name, with underscores and as it stands."""
    names = {word.partition("=")[0] for word in words}
    return names | {dashed(name) for name in names}


def runs_own_code(traits: Traits, fields: "ProfileFields") -> list[str]:
    """What of a profile runs code on a node, in the words of a policy's ``trust``; sorted."""
    words = [*(fields.args or ()), *(fields.command or ())]
    said = {
        "Command": bool(fields.command),
        "PreExec": bool(fields.pre_exec),
        "PodTemplate": fields.pod_template is not None,
        "RemoteCode": bool(set(traits.code) & _typed_names(words)),
    }
    return sorted(word for word, there in said.items() if there)
