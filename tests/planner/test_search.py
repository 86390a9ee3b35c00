"""Does the quick search find what looking at every place finds?"""

from hypothesis import given, settings
from hypothesis import strategies as st

from berth.planner import placement
from berth.planner.book import Book
from berth.planner.placement import Offer, plan_free_offer, plan_victim_offer
from berth.planner.plan import make_plan
from berth.planner.search import all_candidates, disk_allows, plan_search
from berth.planner.state import Stage, State
from berth.planner.wishes import Want, Wish
from builders import NOW, cluster, gib, model, need, node, policy, runner, waiting

FILES = (("sha", gib(1)),)
AMOUNT = st.sampled_from([2.0, 3.0, 5.0, 8.0, 12.0, 20.0])


@st.composite
def states(draw: st.DrawFn) -> tuple[State, str]:
    """A small fleet with anything on it, and one model that is asked for."""
    parts: list[object] = []
    for index in range(draw(st.integers(1, 5))):
        has = ["sha"] if draw(st.booleans()) else []
        group = policy(name=f"g{index % 2}", max_runners=draw(st.sampled_from([0, 0, 3])))
        size = draw(st.sampled_from([12.8, 25.6]))
        gpus = draw(st.integers(0, 3))
        parts.append(node(f"n{index}", gpus=gpus, gpu=size, files=has, policy=group))
        for at in range(gpus):
            for number in range(draw(st.integers(0, 2))):
                name = f"m{index}{at}{number}"
                more = {"min_replicas": 1} if draw(st.integers(0, 4)) == 0 else {}
                parts.append(model(name, used=NOW - draw(st.integers(0, 900)), **more))
                stage = draw(st.sampled_from([Stage.UP, Stage.UP, Stage.STARTING, Stage.STOPPING]))
                busy = draw(st.integers(0, 1))
                gpu = draw(AMOUNT)
                parts.append(runner(name, gpu, on=f"n{index}", at=at, stage=stage, busy=busy))
    ways = draw(st.sampled_from([1, 1, 2, 3]))
    needs = (need(draw(AMOUNT)), need(draw(AMOUNT), 4), need(gpus=(4, 6)))[:ways]
    files = FILES if draw(st.booleans()) else ()
    parts.append(waiting("new", needs=needs, files=files))
    return cluster(*parts), "ns/new"  # type: ignore[arg-type]


def best_of(offers: list[Offer | None]) -> Offer | None:
    return min((o for o in offers if o is not None), key=lambda o: o.price, default=None)


@settings(max_examples=400)
@given(states())
def test_the_quick_search_finds_what_looking_at_all_finds(drawn: tuple[State, str]) -> None:
    state, key = drawn
    book = Book.of(state)
    wish = Wish(book.models[key], Want.WAITING, NOW - 1)
    search = plan_search(book, wish)
    every = [
        c
        for c in all_candidates(book, search)
        if placement._cap_allows(book, c.node) and disk_allows(book, wish, c.node)
    ]
    free = [
        placement._free_offer(book, c, not placement._has_files(book, wish, c.node)) for c in every
    ]
    assert plan_free_offer(book, search) == best_of(free)
    victims = [
        placement._victim_offer(book, wish, c)
        for c in all_candidates(book, search)
        if disk_allows(book, wish, c.node)
    ]
    if best_of(free) is None:
        assert plan_victim_offer(book, search) == best_of(victims)


@settings(max_examples=400)
@given(states(), st.randoms(use_true_random=False))
def test_the_order_of_the_snapshot_does_not_matter(drawn: tuple[State, str], dice: object) -> None:
    state, _ = drawn
    mixed = []
    for values in (state.nodes, state.models, state.runners):
        shuffled = list(values)
        dice.shuffle(shuffled)  # type: ignore[attr-defined]
        mixed.append(tuple(shuffled))
    other = State(now=state.now, epoch=1, nodes=mixed[0], models=mixed[1], runners=mixed[2])
    one, two = make_plan(state), make_plan(other)
    assert one.actions == two.actions
    assert set(one.verdicts) == set(two.verdicts)
    assert one.wake_at == two.wake_at
