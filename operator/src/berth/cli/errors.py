"""How does a command say that it failed: what was attempted, what was wrong, what to do?"""

import click


class CommandError(click.ClickException):
    """Printed as ``Error: ATTEMPTED: WRONG. To mend it: TODO.``; the exit code is 1."""

    def __init__(self, attempted: str, *, wrong: str, todo: str) -> None:
        super().__init__(f"{attempted}: {wrong.rstrip('.')}. To mend it: {todo}.")
        self.attempted = attempted
        self.wrong = wrong
        self.todo = todo
