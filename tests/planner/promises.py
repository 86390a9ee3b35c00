"""What must hold for every plan, whatever happens?"""

from dataclasses import replace

from berth.planner.actions import Drain, Plan, Prepare, Reserve, Spare, StartPod, Stop
from berth.planner.amounts import amounts
from berth.planner.arithmetic import rooms
from berth.planner.book import Book
from berth.planner.plan import make_plan
from berth.planner.spread import plan_spread
from berth.planner.state import Runner, Stage, State
from berth.planner.wishes import limit
from berth.reasons import Reason
from planner.world import World


def check_promises(world: World, state: State, plan: Plan) -> None:
    assert plan == make_plan(state), "the same snapshot gave two plans"
    check_victims(world, state, plan)
    check_copies(world, state)
    check_memory(world, state)
    check_order(world, state, plan)
    check_told(world, plan)
    check_holds(state, plan)


def check_holds(state: State, plan: Plan) -> None:
    """Nothing is started, or given a place, on a node that a hold has."""
    held = {node.name for node in state.nodes if node.held_by}
    homes = {runner.uid: runner.node for runner in state.runners}
    for action in plan.actions:
        if isinstance(action, Prepare | Reserve):
            assert action.place.node not in held, f"{action.model} was placed on a held node"
        if isinstance(action, StartPod):
            assert homes[action.runner] not in held, f"{action.runner} was started during a hold"


def check_victims(world: World, state: State, plan: Plan) -> None:
    seen = {r.uid: r for r in state.runners}
    reserved = {a.model for a in plan.actions if isinstance(a, Reserve)}
    stops = {a.runner for a in plan.actions if isinstance(a, Stop)}
    for action in plan.actions:
        if isinstance(action, Drain) and action.reason is Reason.MAKE_ROOM:
            victim, newcomer = seen[action.runner], world.models[action.newcomer]
            assert victim.stage is Stage.UP, f"{victim.stage} is never a victim"
            assert not world.models[victim.model].pinned
            since = min(t for t in (newcomer.waiting_since, newcomer.load_asked, world.now) if t)
            overdue = world.now - since >= state.fairness_s
            in_use = victim.busy or world.models[victim.model].waiting
            assert overdue or not in_use, f"{victim.uid} is in use"
            held = {r.model for r in state.runners if r.stage is Stage.RESERVED}
            assert action.newcomer in reserved | held, "a drain without its reservation"
        if isinstance(action, Stop):
            victim = seen[action.runner]
            if action.reason is Reason.MAKE_ROOM:
                assert is_promised(world, victim, state, plan), "stopped in vain"
    check_none_in_vain(world, state, plan)
    spared = {a.runner for a in plan.actions if isinstance(a, Spare)}
    drained = {a.runner for a in plan.actions if isinstance(a, Drain)}
    assert not spared & (drained | stops), "one plan undoes itself"


def is_promised(world: World, victim: Runner, state: State, plan: Plan) -> bool:
    """Whether somebody loads, or has a reservation, where the victim stands or under its cap."""
    home = world.nodes[victim.node]
    places = [r.node for r in state.runners if r.stage in (Stage.RESERVED, Stage.STARTING)]
    places += [a.place.node for a in plan.actions if isinstance(a, Reserve)]
    policies = {world.nodes[name].policy.name for name in places}
    return home.name in places or (home.policy.max_runners > 0 and home.policy.name in policies)


def check_none_in_vain(world: World, state: State, plan: Plan) -> None:
    """Every victim is needed: without any one of them the newcomer would not fit."""
    book = Book.of(state)
    for made in plan.actions:
        if not isinstance(made, Reserve):
            continue
        place = book.at(made.place.node)
        others = [
            a for a in plan.actions if isinstance(a, Reserve) and a.place.node == made.place.node
        ]
        if len(others) > 1 or place.node.policy.max_runners or made.runner:
            continue
        moved = {a.runner for a in plan.actions if isinstance(a, (Spare, Stop))}
        here = [r for r in state.runners if r.node == made.place.node]
        if any(r.uid in moved or r.drain is not None for r in here):
            continue
        lacks = place.lacks(amounts(place.node, made.claim, place.unified))
        drains = {
            a.runner for a in plan.actions if isinstance(a, Drain) and a.newcomer == made.model
        }
        victims = [r for r in state.runners if r.uid in drains and r.node == made.place.node]
        for spare in victims:
            held = [book.takes(r, place.unified) for r in victims if r is not spare]
            left = {d: n - sum(h.get(d, 0) for h in held) for d, n in lacks.items()}
            assert any(n > 0 for n in left.values()), f"{spare.uid} was not needed"


def check_copies(world: World, state: State) -> None:
    book = Book.of(state)
    book.spread = {m.key: plan_spread(book, m) for m in state.models if m.per_device}
    for key, model in world.models.items():
        pods = [t for t in world.of(key) if world.has_memory(t) and world.nodes[t.seen.node].ready]
        fresh = [t for t in pods if t.seen.settings_hash == model.settings_hash]
        stays = [t for t in fresh if t.seen.stage in (Stage.STARTING, Stage.UP)]
        most = max(limit(book, model), 1) + (len(pods) - len(fresh))
        if all(t.seen.drain is None for t in pods):
            assert len(stays) <= most + 1, f"{len(stays)} pods of {key}"


def check_order(world: World, state: State, plan: Plan) -> None:
    """Autoload: one at a time, and never before who is kept and stands before it."""
    before = {r.model for r in state.runners}
    roles = [
        a.model
        for a in plan.actions
        if isinstance(a, (Prepare, Reserve)) and a.model not in before and is_role(world, a.model)
    ]
    assert len(roles) <= 1, f"{roles} are loaded at once"


def is_role(world: World, key: str) -> bool:
    """Whether nothing but autoload wants the model."""
    model = world.models[key]
    asked = model.waiting or model.load_asked is not None
    return not (asked or model.min_replicas or model.pinned)


def check_memory(world: World, state: State) -> None:
    """Pods never hold more than a place has less its reserve."""
    if not world.is_estimate_trusted:
        return
    for node in state.nodes:
        mine = [
            t for t in world.runners.values() if t.seen.node == node.name and world.has_memory(t)
        ]
        pods = [replace(t.seen, measured=world.measured(t)) for t in mine]
        for place, room in rooms(node, pods).items():
            assert room.free >= 0, f"{node.name} {place} is over by {-room.free}"


def check_told(world: World, plan: Plan) -> None:
    """Act or explain: a model that somebody waits for is never just down."""
    for verdict in plan.verdicts:
        model = world.models[verdict.model]
        assert verdict.message
        if model.waiting and not model.suspended and model.not_before is None:
            assert verdict.state.value != "Down", f"{verdict.model} waits and nobody says why"
