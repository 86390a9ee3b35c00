"""Do the plans of a busy day keep their promises? Whole stories in a model of the world."""

from hypothesis import given, settings
from hypothesis import strategies as st

from berth.planner.state import Model, Node
from builders import gib, model, node
from planner.promises import check_promises
from planner.world import World


def world(*parts: Node | Model, **more: object) -> World:
    nodes = {part.name: part for part in parts if isinstance(part, Node)}
    models = {part.key: part for part in parts if isinstance(part, Model)}
    return World(nodes, models, promises=(check_promises,), **more)  # type: ignore[arg-type]


def swap_world(**more: object) -> World:
    """One slot of memory, two models that exclude each other."""
    return world(node(), model("a", 20), model("b", 20), **more)


def test_a_hundred_first_requests_make_one_load() -> None:
    story = world(node(), model("a", 20, parallel=4))
    for _ in range(100):
        story.request("ns/a", 0.1)
    story.run(60)
    assert (story.loads, story.served["ns/a"], story.cut) == (1, 100, 0)


def test_c1_a_is_answered_then_b_then_a_again() -> None:
    story = swap_world()
    story.request("ns/a", 1)
    story.run(0.1)
    story.request("ns/b", 1)
    story.run(60)
    assert (story.served, story.loads) == ({"ns/a": 1, "ns/b": 1}, 2)
    story.request("ns/a", 1)
    story.run(0.05)
    story.request("ns/b", 1)
    story.run(60)
    assert (story.served, story.loads, story.cut) == ({"ns/a": 2, "ns/b": 2}, 4, 0)


def test_c3_three_cold_models_with_memory_for_one() -> None:
    story = world(node(), *(model(name, 20) for name in "abc"))
    for name in "abc":
        story.request(f"ns/{name}", 1)
    story.run(120)
    assert story.served == {"ns/a": 1, "ns/b": 1, "ns/c": 1}
    assert story.loads == 3


def test_c4_a_loading_model_serves_its_waiters_before_it_gives_way() -> None:
    story = swap_world(load_s=30.0)
    story.request("ns/a", 1)
    story.run(1)
    story.request("ns/b", 1)
    story.run(33)
    assert story.served.get("ns/a") == 1
    story.run(60)
    assert story.served.get("ns/b") == 1


def test_c5_an_answer_in_flight_is_never_cut_for_another_model() -> None:
    story = swap_world()
    story.request("ns/a", 30)
    story.run(6)
    story.request("ns/b", 1)
    story.run(25)
    assert story.served.get("ns/b") is None
    story.run(60)
    assert (story.served, story.cut) == ({"ns/a": 1, "ns/b": 1}, 0)


def test_c11_ten_of_a_and_one_of_b_swap_twice() -> None:
    story = swap_world()
    for index in range(10):
        story.request("ns/a", 1)
        if index == 4:
            story.request("ns/b", 1)
    story.run(120)
    assert (story.served, story.loads) == ({"ns/a": 10, "ns/b": 1}, 2)


def test_c15_a_request_during_the_unload_makes_no_second_pod() -> None:
    story = world(node(), model("a", 20, idle_timeout_s=60), stop_s=30.0)
    story.request("ns/a", 1)
    story.run(70)
    assert story.runners
    story.request("ns/a", 1)
    story.run(60)
    assert (story.served, story.cut) == ({"ns/a": 2}, 0)
    assert len(story.runners) == 1


def test_c25_idle_counts_from_when_the_runner_came_up() -> None:
    story = world(node(), model("a", 20, idle_timeout_s=30, load_asked=1000.0), load_s=180.0)
    story.run(200)
    assert [t.seen.stage.value for t in story.runners.values()] == ["Up"]
    story.run(30)
    assert not story.runners


def test_constant_traffic_on_both_of_two_that_exclude_each_other_does_not_thrash() -> None:
    story = swap_world()
    for _ in range(300):
        story.request("ns/a", 1.5)
        story.request("ns/b", 1.5)
        story.run(2)
    story.run(1200)
    assert story.served == {"ns/a": 300, "ns/b": 300}
    assert story.cut == 0
    assert story.loads <= 2 + 1800 / 60


def test_h1_new_settings_on_a_full_device_end_up_with_one_new_pod() -> None:
    story = world(node(), model("a", 20))
    story.request("ns/a", 1)
    story.run(30)
    story.change("ns/a", settings_hash="h2")
    story.run(30)
    assert [(t.seen.stage.value, t.seen.settings_hash) for t in story.runners.values()] == [
        ("Up", "h2")
    ]
    assert story.loads == 2


def test_new_settings_with_room_start_before_the_old_ones_stop() -> None:
    story = world(node(), model("a", 10))
    story.request("ns/a", 1)
    story.run(30)
    story.change("ns/a", settings_hash="h2")
    story.run(1)
    stages = sorted(t.seen.stage.value for t in story.runners.values())
    assert stages == ["Starting", "Up"]
    story.run(30)
    assert [(t.seen.stage.value, t.seen.settings_hash) for t in story.runners.values()] == [
        ("Up", "h2")
    ]


def test_a_lost_node_costs_a_minute_and_nothing_is_loaded_twice() -> None:
    story = world(node("gpu-1"), node("gpu-2"), model("a", 20, min_replicas=1))
    story.run(20)
    story.change_node("gpu-1", ready=False, not_ready_since=story.now)
    story.run(59)
    assert len(story.runners) == 1
    story.run(20)
    up = [t.seen.node for t in story.runners.values() if t.seen.stage.value == "Up"]
    assert up == ["gpu-2"]
    story.change_node("gpu-1", ready=True, not_ready_since=None)
    story.run(20)
    assert [t.seen.node for t in story.runners.values()] == ["gpu-2"]


def test_crashes_back_off_and_the_waiting_request_is_served() -> None:
    story = world(node(), model("a", 20))
    story.request("ns/a", 5)
    for _ in range(4):
        story.run(0.5)
        loading = [u for u, t in story.runners.items() if t.seen.stage.value == "Starting"]
        if loading:
            story.crash(loading[0])
        story.run(9)
    story.run(60)
    assert story.served == {"ns/a": 1}


def test_a_wrong_estimate_is_met_by_admission_not_by_overcommit() -> None:
    story = world(node(), model("a", 10), model("b", 10), factor={"ns/a": 1.6})
    story.is_estimate_trusted = False
    story.request("ns/a", 1)
    story.run(30)
    story.request("ns/b", 1)
    story.run(200)
    assert story.served == {"ns/a": 1, "ns/b": 1}
    assert gib(16) + gib(10) > gib(24)


WINDOW_S = 60.0
TRAFFIC_S = 240


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    pauses=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    lengths=st.tuples(st.sampled_from([0.5, 4.0, 20.0]), st.sampled_from([0.5, 4.0, 20.0])),
    load_s=st.sampled_from([1.0, 10.0]),
)
def test_whatever_the_traffic_waits_are_bounded_and_dense_traffic_swaps_once_in_a_window(
    pauses: tuple[int, int], lengths: tuple[float, float], load_s: float
) -> None:
    """Two that exclude each other, each asked for at its own pace: nobody waits beyond two windows, what
    is in hand, a stop and a load (L9)."""
    keys = ("ns/a", "ns/b")
    models = {key: model(key, 20, parallel=8) for key in keys}
    world = World({"gpu-1": node()}, models, load_s=load_s)
    longest = 0.0
    for second in range(TRAFFIC_S):
        for key, pause, length in zip(keys, pauses, lengths, strict=True):
            if second % pause == 0:
                world.request(key, length)
        world.run(1.0)
        since = [m.waiting_since for m in world.models.values() if m.waiting_since is not None]
        longest = max(longest, world.now - min(since, default=world.now))
    slack = max(lengths) + world.stop_s + load_s + 10.0
    assert longest <= 2 * WINDOW_S + slack
    if max(pauses) <= 3:
        assert world.loads <= 2 + TRAFFIC_S / WINDOW_S
