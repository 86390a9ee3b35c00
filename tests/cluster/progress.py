"""How does a person who waits see what is going on?"""

import sys
import time

_began = time.monotonic()


def say(line: str) -> None:
    """One line with the seconds since the command began, on stderr: stdout is for answers."""
    print(f"[{time.monotonic() - _began:6.1f} s] {line}", file=sys.stderr, flush=True)
