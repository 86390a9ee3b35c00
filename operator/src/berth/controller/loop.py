"""When does a pass run, and what is in it? observe → plan → apply → status, one at a time."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from berth.controller.apply import Application, Hands, StalePlanError
from berth.controller.demands import DEMANDS, ensure_demands
from berth.controller.dump import BugKeeper
from berth.controller.holding import Holding
from berth.controller.launch import Stamp
from berth.controller.members import keep_groups
from berth.controller.metrics import Metrics
from berth.controller.observe import Frame, Observation, Remembered, observe
from berth.controller.observe_models import dead_gateways
from berth.controller.priced import Priced
from berth.controller.prices import PriceDesk
from berth.controller.publish import Pass, Publisher
from berth.controller.sweep import sweep_pods
from berth.kube.client import ApiError, ApiUnreachableError
from berth.planner.actions import Plan
from berth.planner.plan import make_plan
from berth.planner.state import Stage
from berth.reasons import Reason

log = logging.getLogger(__name__)

_LONGEST_DEBOUNCE_S = 0.5
_RETRY_S = 1.0
_BUSY_TICK_S = 2.0
_IDLE_TICK_S = 15.0
_REREAD = frozenset(
    {
        Reason.SOURCE_CHANGED,
        Reason.HASH_MISMATCH,
        Reason.SOURCE_NOT_FOUND,
        Reason.MISSING_FILE,
    }
)


class Bell:
    """Rung by every change; awaited until it has been quiet for a moment."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._event = asyncio.Event()
        self._first = self._last = 0.0

    def ring(self) -> None:
        self._last = time.monotonic()
        if not self._event.is_set():
            self._first = self._last
            self._event.set()

    async def wait(self, timeout_s: float) -> None:
        """Until a burst of changes has ended, or the timeout passed without any.

        A burst is waited for so long at most, what of it fell into the last pass included.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return
        # Every ring meanwhile moves the end.
        while (rest := self._end() - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(rest)
        self._event.clear()

    def _end(self) -> float:
        return min(self._last + self._quiet_s, self._first + _LONGEST_DEBOUNCE_S)


class Stopwatch:
    """Seconds spent in ``with`` blocks since it was last read."""

    def __init__(self) -> None:
        self._began = self._seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds += time.monotonic() - self._began

    def taken(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


@dataclass(frozen=True)
class Passes:
    """The passes of one leader. ``frame`` gives what a pass is told beside the objects."""

    hands: Hands
    desk: PriceDesk
    remembered: Remembered
    frame: Callable[[float], Frame]
    metrics: Metrics
    bell: Bell
    bugs: BugKeeper = field(default_factory=BugKeeper)
    thinking: Stopwatch = field(default_factory=Stopwatch)

    async def run(self) -> None:
        """One pass after another, for ever. One writer: no two of them overlap."""
        pause, number = 0.0, 0
        while True:
            await self.bell.wait(pause)
            number += 1
            began = time.monotonic()
            outcome, pause = await self._guarded(number)
            self.metrics.passed(outcome, time.monotonic() - began)
            # At most half of one core goes into planning, however fast things change.
            await asyncio.sleep(min(self.thinking.taken(), 1.0))

    async def _guarded(self, number: int) -> tuple[str, float]:
        try:
            return await self.once(number)
        except StalePlanError as err:
            log.info("plan dropped: %s", err)
            return "dropped", _RETRY_S
        except (ApiError, ApiUnreachableError) as err:
            log.warning("pass ended early: %s", err)
            return "dropped", _RETRY_S
        except Exception:
            # The next pass starts from a new snapshot; the controller must outlive this one.
            log.exception("a pass failed")
            return "failed", _RETRY_S

    async def once(self, number: int) -> tuple[str, float]:
        """One pass: its outcome, and after how many seconds the next one is due if nothing happens."""
        now = self.hands.clock()
        with self.thinking:
            self.desk.refresh(now)
            frame = replace(self.frame(now), prices=self.desk.prices())
            seen, plan = await self._decide(frame, now)
        stamp = Stamp(seen.state.epoch, f"{seen.state.epoch}-{number}-{int(now * 1000)}")
        hands = replace(self.hands, stamp=stamp)
        application = Application(hands, seen)
        try:
            with hands.outbox.held():
                done = await application.run(plan)
        finally:
            self._count(application, now)
        await sweep_pods(hands)
        copies = await Holding(hands, self.remembered.copies).run(seen.state, plan)
        await keep_groups(hands)
        await self._clear_dead_gateways(now)
        with self.thinking:
            ensure_demands(hands, seen.models)
            one = Pass(seen, plan, now, copies.warnings, frame.hold_silence_s)
            await Publisher(hands, self.remembered, one).run()
        self.metrics.applied(done)
        self.metrics.written(hands.outbox.taken())
        self.metrics.copied(self.remembered.copies.tally, seen.state.nodes)
        self.metrics.saw(seen.state.runners, len(seen.models))
        self.metrics.compared(_ratios(self.remembered, frame.prices))
        self.remembered.sightings.forget_untouched()
        return "done", self._until_next(plan, seen, now)

    async def _decide(self, frame: Frame, now: float) -> tuple[Observation, Plan]:
        seen = observe(self.hands.store, self.remembered, frame, now)
        self._learn(seen)
        plan = await asyncio.to_thread(make_plan, seen.state)
        self.remembered.rollouts.note(plan, seen.state.runners, now)
        self.bugs.look(seen.state, plan)
        return seen, plan

    def _learn(self, seen: Observation) -> None:
        """Files that are not what the header said make the header old."""
        for entry in seen.failed_now:
            if entry.outcome is not None and entry.outcome.reason in _REREAD:
                self.desk.forget(entry.model_key)
            elif entry.outcome is not None and entry.outcome.reason is Reason.UNSCHEDULABLE:
                self.desk.forget_volume(entry.model_key)

    def _count(self, application: Application, now: float) -> None:
        for failure in application.done.failures:
            self.remembered.history.failed(
                failure.model, failure.runner, failure.outcome, node=failure.node, now=now
            )
            self.bell.ring()

    async def _clear_dead_gateways(self, now: float) -> None:
        """Take out the waiting entries of gateways that are gone: nobody else will."""
        for key, demand in list(self.hands.store.demands.items()):
            for gateway in dead_gateways(key, demand, self.remembered.sightings, now):
                meta = demand.metadata
                answer = await self.hands.kube.apply_status(
                    DEMANDS,
                    meta.name,
                    {"waiting": []},
                    manager=f"berth-gateway-{gateway}",
                    namespace=meta.namespace,
                )
                self.hands.store.demands.put(answer)

    def _until_next(self, plan: Plan, seen: Observation, now: float) -> float:
        """Seconds until time alone may change something."""
        restless = any(runner.stage is not Stage.UP for runner in seen.state.runners) or any(
            model.waiting or model.load_asked is not None for model in seen.state.models
        )
        moments = [now + (_BUSY_TICK_S if restless else _IDLE_TICK_S)]
        moments += [at for at in (plan.wake_at, self.desk.next_retry()) if at is not None]
        return max(0.02, min(moments) - self.hands.clock())


def _ratios(remembered: Remembered, prices: Mapping[str, Priced]) -> Iterator[tuple[str, float]]:
    """Measured as a share of estimated, for every Model that has run with its present settings."""
    measurements = remembered.history.measurements
    for key in measurements.models():
        priced = prices.get(key)
        for need in priced.needs if priced else ():
            yield from measurements.ratios(key, priced.settings_hash if priced else "", need)
