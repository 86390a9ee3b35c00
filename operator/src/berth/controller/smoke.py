"""What must a runner with new settings answer before it counts as up?"""

import json

from berth.api.meta import seconds_of
from berth.api.model import Model
from berth.api.profile import SmokeTest
from berth.api.runner import SmokeRequest
from berth.controller.parts import WEIGHTS, facts_of
from berth.controller.priced import Priced
from berth.runtimes.base import Probe
from berth.runtimes.probes import probe_request

_TOKENS = 16
_NO_WORDS = ("--embedding", "--embeddings", "--rerank", "--reranking", "--pooling")
"""Arguments with which an engine answers no chat."""


def smoke_request(model: Model, priced: Priced) -> SmokeRequest | None:
    """A short streamed request: the profile's own, or one that any answer passes.

    None for models that answer with vectors, where the profile asks for no test of its own, and for
    engines that speak no API that can be tried so.
    """
    asked = priced.fields.smoke_test
    if asked is None and _has_no_words(priced):
        return None
    probes = priced.variants[0].runtime.traits.probes if priced.variants else ()
    if not probes:
        return None
    test = asked or SmokeTest()
    path, body = probe_request(probes[0], model=model.served_id, prompt=test.prompt, tokens=_TOKENS)
    return SmokeRequest(
        path=path,
        body=json.dumps(body, separators=(",", ":")),
        expect=test.expect or "",
        timeout_seconds=max(1, round(seconds_of(test.timeout))),
        asked=asked is not None,
    )


def readiness_request(model: Model, priced: Priced) -> SmokeRequest | None:
    """The streamed probe of the profile's ``readiness``: up means that it was answered."""
    asked = priced.fields.readiness.probe if priced.fields.readiness else "None"
    if asked == "None":
        return None
    test = SmokeTest()
    path, body = probe_request(
        Probe(asked), model=model.served_id, prompt=test.prompt, tokens=_TOKENS
    )
    return SmokeRequest(path=path, body=json.dumps(body, separators=(",", ":")))


def _has_no_words(priced: Priced) -> bool:
    if any(word.partition("=")[0] in _NO_WORDS for word in priced.fields.args or ()):
        return True
    try:
        facts = facts_of(priced.facts)[WEIGHTS] if priced.facts is not None else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return facts is not None and bool(facts.integer("pooling_type"))
