"""What does an inspecting pod say so far? A pod as last seen in, facts or a reason out. (Pure.)"""

from collections.abc import Mapping
from dataclasses import dataclass

from berth.api.model import FactsStatus, Model
from berth.controller.outcomes import judge_waiting
from berth.controller.parts import facts_status, joined, parts_of
from berth.controller.pricing import Unpriceable
from berth.controller.views import PodView
from berth.headers import HeaderError, HeaderReason
from berth.headers.report import Results, decode
from berth.manifests.inspect import DEADLINE_S
from berth.reasons import Reason

UNSCHEDULED_S = 30.0


@dataclass(frozen=True)
class Finding:
    """What is known by it. Neither results nor a reason: it is on its way."""

    results: Results | None = None
    why: Unpriceable | None = None
    over: bool = False
    """The pod will say no more."""


def judge_inspection(pod: PodView, waited_s: float) -> Finding:
    """What the pod says, first match wins.

    1. Its container has ended: its message, facts or a reason.
    2. It ended without one: out of time, turned out, not taken in.
    3. Its image cannot be had: told, and the kubelet goes on trying.
    4. No node takes it: told at once where its claim is missing, else after 30 s; it stays, for
       the scheduler goes on trying.
    """
    if pod.ended is not None and pod.ended.message:
        return _said(pod.ended.message)
    if pod.finished:
        return Finding(why=_ended(pod), over=True)
    held_up = judge_waiting(pod)
    if held_up is not None:
        return Finding(why=Unpriceable(held_up.reason, f"{_looks(pod)}: {held_up.message}"))
    if not pod.scheduled:
        return Finding(why=_unscheduled(pod, waited_s))
    return Finding()


def claim_paths(model: Model) -> tuple[str, Mapping[str, str]]:
    """The claim of a Model, and the path of each part below its root.

    Raises Unpriceable: a runner mounts one claim, so all parts must lie on it.
    """
    parts, paths, claim = parts_of(model), {}, ""
    for part in parts:
        path = part.source.path
        name = path.persistent_volume_claim if path else None
        if path is None or name is None or (claim and name != claim):
            text = f"its {part.name} must lie on the claim of its weights, or all parts elsewhere"
            raise Unpriceable(Reason.UNSUPPORTED, text)
        claim, paths[part.name] = name, path.path.strip("/")
    return claim, paths


def claim_facts(model: Model, results: Results, source_hash: str) -> FactsStatus:
    """The results as a status. Raises KeyError or ValueError on what is none.

    The digest of such files is of names and sizes alone: with the source in it, another claim is
    another digest.
    """
    facts = facts_status(results, parts_of(model), source_hash)
    return facts.model_copy(update={"digest": joined(facts.digest, source_hash)})


def reason_of(word: str) -> Reason:
    """A header reader's word as a condition's reason; finer ones are shown as they are."""
    try:
        return Reason(word)
    except ValueError:
        return Reason.INVALID_HEADER


def refusal_of(err: HeaderError) -> Unpriceable:
    return Unpriceable(reason_of(err.reason), err.message, word=str(err.reason))


def _said(message: str) -> Finding:
    try:
        return Finding(results=decode(message), over=True)
    except HeaderError as err:
        return Finding(why=refusal_of(err), over=True)


def _ended(pod: PodView) -> Unpriceable:
    if pod.reason == "DeadlineExceeded":
        text = f"{_looks(pod)}, and had not mounted and read them within {DEADLINE_S} s"
        return refusal_of(HeaderError(HeaderReason.SOURCE_TOO_SLOW, _see(text, pod)))
    if pod.ended is not None and pod.ended.reason == "OOMKilled":
        text = "the header needs more memory than it may take"
        return refusal_of(HeaderError(HeaderReason.INVALID_HEADER, text))
    words = (
        f"{pod.reason} {pod.message}".strip() or f"exit {pod.ended.exit_code if pod.ended else '?'}"
    )
    return Unpriceable(Reason.SOURCE_UNREACHABLE, _see(f"{_looks(pod)}, ended: {words}", pod))


def _unscheduled(pod: PodView, waited_s: float) -> Unpriceable | None:
    words = pod.unscheduled_message
    if "persistentvolumeclaim" in words and "not found" in words:
        return Unpriceable(Reason.CLAIM_NOT_FOUND, words)
    if waited_s < UNSCHEDULED_S:
        return None
    told = words or "the scheduler has not said why"
    text = f"{_looks(pod)}, and no node takes it: {told}"
    return Unpriceable(Reason.UNSCHEDULABLE, text)


def _looks(pod: PodView) -> str:
    return f"pod {pod.name} looks at its files"


def _see(text: str, pod: PodView) -> str:
    return f"{text} (`kubectl describe pod {pod.name} -n {pod.namespace}` says more)"
