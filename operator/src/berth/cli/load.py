"""How does a person load, unload or kill? One annotation, then the wait until it is so."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import click

from berth.api.meta import ANNOTATION_KILL, ANNOTATION_LOAD, ANNOTATION_UNLOAD, timestamp
from berth.api.model import Model
from berth.api.runner import Runner
from berth.cli.cluster import Target, cluster_options, connected, follow, get, list_all, run
from berth.cli.errors import CommandError
from berth.cli.models import as_wire, ready, state_of
from berth.cli.show import show_json
from berth.gateway.errors import FINAL_REFUSALS
from berth.kube.client import Kube
from berth.kube.refs import ref_of
from berth.reasons import State
from berth.units import show_seconds


@dataclass(frozen=True)
class Ended:
    """The wait is over: it is so, or ``wrong`` says why it will not be."""

    wrong: str = ""


Judge = Callable[[Model, str], Ended | None]


def judge_load(model: Model, asked: str) -> Ended | None:
    """Whether a wait for a load is over. First rule that applies wins.

    1. The model is up. 2. The controller has not taken up this very request: what the status says
    is of earlier. 3. It has failed. 4. It was refused for a reason that waiting does not mend.
    """
    if state_of(model) == State.UP:
        return Ended()
    if model.status.load_handled != asked:
        return None
    refusal, condition = model.status.last_refusal, ready(model)
    if state_of(model) == State.FAILED:
        return Ended(condition.message if condition and condition.message else "it failed")
    if refusal is not None and refusal.reason in FINAL_REFUSALS:
        return Ended(refusal.message or refusal.reason)
    return None


def judge_unload(model: Model, asked: str) -> Ended | None:
    """Whether a wait for an unload is over: the request was taken up and no runner is left."""
    if model.status.unload_handled == asked and not model.status.runners:
        return Ended()
    return None


def is_unloaded(model: Model) -> bool:
    """No runner, and none on its way."""
    return not model.status.runners and state_of(model) in {"", State.DOWN, State.FAILED}


timeout_option = click.option(
    "--timeout", default=1800.0, show_default=True, help="Seconds to wait; 0: do not wait."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("model")
@timeout_option
@json_option
@cluster_options
def load(*, model: str, target: Target, timeout: float, as_json: bool) -> None:
    """Load MODEL and wait until it is up; one that is up already succeeds at once."""
    asking = _Asking("load", model, target.in_namespace, ANNOTATION_LOAD, judge_load)
    _ask(asking, target, timeout, as_json=as_json, done="is up")


@click.command()
@click.argument("model")
@timeout_option
@json_option
@cluster_options
def unload(*, model: str, target: Target, timeout: float, as_json: bool) -> None:
    """Unload MODEL once its answers in flight have ended, and wait until it is gone."""
    asking = _Asking("unload", model, target.in_namespace, ANNOTATION_UNLOAD, judge_unload)
    _ask(asking, target, timeout, as_json=as_json, done="is unloaded")


@dataclass(frozen=True)
class _Asking:
    verb: str
    model: str
    namespace: str
    annotation: str
    judge: Judge

    @property
    def attempted(self) -> str:
        return f"{self.verb}ing model {self.namespace}/{self.model}"

    def is_so(self, model: Model) -> bool:
        return state_of(model) == State.UP if self.verb == "load" else is_unloaded(model)


def _ask(asking: _Asking, target: Target, timeout: float, *, as_json: bool, done: str) -> None:
    began = time.monotonic()
    model, changed = run(_carry_out(asking, target, timeout), attempted=asking.attempted)
    if as_json:
        show_json({"changed": changed} | as_wire(model))
    elif not changed:
        click.echo(f"model {model.key} {done} already")
    elif not timeout:
        click.echo(f"model {model.key}: asked to {asking.verb}")
    else:
        click.echo(f"model {model.key} {done} after {show_seconds(time.monotonic() - began)}")


async def _carry_out(asking: _Asking, target: Target, timeout: float) -> tuple[Model, bool]:
    """The model as it is in the end, and whether anything had to be done."""
    async with connected(target) as kube:
        model = await get(kube, Model, asking.model, asking.namespace)
        if asking.is_so(model):
            return model, False
        _refuse_suspended(asking, model)
        asked = await _annotate(kube, model, asking.annotation)
        if not timeout:
            return model, True
        return await _wait(kube, asking, asked, timeout), True


def _refuse_suspended(asking: _Asking, model: Model) -> None:
    if asking.verb == "load" and model.spec.suspend:
        raise CommandError(
            asking.attempted, wrong="it says suspend: true", todo="set spec.suspend to false"
        )


async def _annotate(kube: Kube, obj: Model | Runner, annotation: str) -> str:
    """Ask by annotation; the value tells this request from all others."""
    asked = timestamp(time.time())
    await kube.patch_merge(
        ref_of(type(obj)),
        obj.metadata.name,
        {"metadata": {"annotations": {annotation: asked}}},
        namespace=obj.metadata.namespace,
    )
    return asked


async def _wait(kube: Kube, asking: _Asking, asked: str, timeout_s: float) -> Model:
    last = ""
    try:
        async with (
            asyncio.timeout(timeout_s),
            aclosing(follow(kube, ref_of(Model), asking.model, asking.namespace)) as changes,
        ):
            async for obj in changes:
                model = Model.model_validate(obj)
                ended = asking.judge(model, asked)
                if ended is not None:
                    return _finish(asking, model, ended)
                last = _tell(model, last)
    except TimeoutError as err:
        raise CommandError(
            asking.attempted,
            wrong=f"not so after {show_seconds(timeout_s)}; it is {last or 'not seen yet'}",
            todo=f"see `berth explain {asking.model} -n {asking.namespace}`, or `berth doctor` if "
            "nothing moves",
        ) from err
    raise CommandError(asking.attempted, wrong="it was deleted meanwhile", todo="declare it again")


def _finish(asking: _Asking, model: Model, ended: Ended) -> Model:
    if ended.wrong:
        raise CommandError(
            asking.attempted,
            wrong=ended.wrong,
            todo=f"see `berth explain {asking.model} -n {asking.namespace}`",
        )
    return model


def _tell(model: Model, last: str) -> str:
    """One line on standard error for each new state."""
    condition = ready(model)
    now = f"{condition.reason}: {condition.message}" if condition else ""
    if now and now != last:
        click.echo(now, err=True)
    return now


@click.command()
@click.argument("runner")
@json_option
@cluster_options
def kill(*, runner: str, target: Target, as_json: bool) -> None:
    """Kill RUNNER at once: the same as a crash, so what waits gets the model once it is back."""
    namespace = target.in_namespace
    killed = run(_kill(runner, namespace, target), attempted=f"killing runner {namespace}/{runner}")
    if as_json:
        show_json(_killed_wire(killed))
    else:
        click.echo(f"runner {killed.key} of model {killed.spec.model_ref.name}: asked to kill")


def _killed_wire(runner: Runner) -> dict[str, Any]:
    return {
        "namespace": runner.metadata.namespace,
        "runner": runner.metadata.name,
        "model": runner.spec.model_ref.name,
    }


async def _kill(name: str, namespace: str, target: Target) -> Runner:
    async with connected(target) as kube:
        runners = {r.metadata.name: r for r in await list_all(kube, Runner, namespace)}
        if name not in runners:
            raise CommandError(
                f"killing runner {namespace}/{name}",
                wrong=f"there is no such runner; there are: {', '.join(runners) or 'none'}",
                todo="name one of these (a runner's name is not its model's), or another -n",
            )
        await _annotate(kube, runners[name], ANNOTATION_KILL)
        return runners[name]
