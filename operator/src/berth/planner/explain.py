"""What would happen if a model were asked for now? The same code, on a snapshot that asks for it."""

from dataclasses import replace

from berth.planner.actions import Plan
from berth.planner.plan import make_plan
from berth.planner.state import Model, State


def plan_if_asked(state: State, *keys: str) -> Plan:
    """The plan of a snapshot in which one request waits for each of the models; nothing is touched.

    A suspension, an unload by hand and a back-off are left as they are: they are part of the answer.
    Raises KeyError where no model has such a key.
    """
    return make_plan(state_if_asked(state, *keys))


def state_if_asked(state: State, *keys: str) -> State:
    """The snapshot with one request waiting for each of the models. Raises KeyError."""
    unknown = set(keys) - {model.key for model in state.models}
    if unknown:
        raise KeyError(min(unknown))
    models = tuple(
        _asked(model, state.now) if model.key in keys else model for model in state.models
    )
    return replace(state, models=models)


def plan_with(state: State, model: Model) -> Plan:
    """The plan of a snapshot in which ``model`` is declared, in place of one with the same key."""
    others = tuple(other for other in state.models if other.key != model.key)
    return make_plan(replace(state, models=(*others, model)))


def _asked(model: Model, now: float) -> Model:
    if model.waiting:
        return model
    return replace(model, waiting=1, waiting_since=now)
