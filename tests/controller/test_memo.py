"""Is a value made again when what it was made from differs, and only then?"""

from berth.controller.memo import Memo


def test_a_value_is_made_again_only_when_its_source_differs() -> None:
    memo, made = Memo[int](), []

    def get(*source: object) -> int:
        def make() -> int:
            made.append(source)
            return len(made)

        return memo.get("k", source, make)

    assert [get(1, "a"), get(1, "a"), get(2, "a"), get(1, "a")] == [1, 1, 2, 3]


def test_what_nobody_asks_for_any_more_is_forgotten() -> None:
    memo = Memo[str]()
    assert memo.get("old", (1,), lambda: "first") == "first"
    memo.forget_untouched()
    assert memo.get("old", (1,), lambda: "second") == "first"
    memo.forget_untouched()
    memo.forget_untouched()
    assert memo.get("old", (1,), lambda: "third") == "third"
