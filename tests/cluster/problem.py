"""How does the cluster tool say that something is missing, and what to do about it?"""


class Problem(Exception):  # noqa: N818 - not every problem is an error of the program
    """Something that the person must change; `todo` is the one step that mends it."""

    def __init__(self, what: str, *, todo: str) -> None:
        super().__init__(f"{what}; {todo}")
        self.what = what
        self.todo = todo
