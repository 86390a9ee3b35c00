"""Which TCP ports on loopback are free for a cluster that must not meet another one?"""

import random
import socket

from cluster.problem import Problem

# Below the range that the kernel hands to outgoing connections, which could take a port between
# our look and the program's bind.
LOWEST, HIGHEST = 20_000, 29_999


def free(count: int) -> list[int]:
    """Distinct ports that nobody holds now, at random so that parallel workers seldom meet."""
    picked: list[int] = []
    for port in random.sample(range(LOWEST, HIGHEST + 1), HIGHEST - LOWEST + 1):
        if is_free(port):
            picked.append(port)
        if len(picked) == count:
            return picked
    raise Problem(
        f"no {count} free TCP ports between {LOWEST} and {HIGHEST}", todo="end what holds them"
    )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port whose last connection lingers in TIME_WAIT is free to listen on.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def require_free(port: int, *, purpose: str) -> None:
    if not is_free(port):
        raise Problem(
            f"port {port}, wanted for {purpose}, is taken",
            todo=f"see who holds it with `ss -ltnp 'sport = :{port}'`, or choose another",
        )
