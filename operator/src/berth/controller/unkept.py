"""What does kopf remember of an object? Nothing: passes compare, and handlers only hand on.

kopf copies every object whole, several times an event, to find out later what has changed in it.
That was most of the controller's processor time in a burst of placements.
"""

from typing import Any

import kopf


class NoBase(kopf.DiffBaseStorage):
    """No state of an object is the last one handled."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        pass


class NoProgress(kopf.ProgressStorage):
    """No handler is ever under way beyond its event."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        pass

    def purge(self, **_: Any) -> None:
        pass

    def touch(self, **_: Any) -> None:
        pass

    def clear(self, *, essence: Any) -> Any:
        return essence
