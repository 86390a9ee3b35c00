"""What does Berth cost, and beside what? ``python -m bench [NAME…] [-- ARGUMENT…]``

Runs all benchmarks, or those whose figures are named (``gateway`` names all that begin with it), one
after the other, each in a process of its own with a bound on its time. What comes after ``--`` goes to
each of them. Every figure is a line ``ratio NAME VALUE goal GOAL``; one that cannot be had is a line
``skip NAME: WHY``. The exit status is 1 when a figure is neither there nor explained.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEAVE_S = 60
"""What a benchmark gets for ending the programs that it started, once it is told to."""


@dataclass(frozen=True)
class Bench:
    """One program. ``figures`` are the names that it is there for; it may print more."""

    figures: tuple[str, ...]
    what: str
    script: str = ""
    bound_s: int = 600
    why_not: str = ""
    """Why it cannot run yet; empty where it can."""


BENCHES = (
    Bench(
        ("header-parse",),
        "a GGUF header of 24 MB: seconds of gguf.GGUFReader over ours",
        "header_parse.py",
        bound_s=180,
    ),
    Bench(
        ("planner-growth",),
        "the exponent of a pass's time over the size of the fleet",
        "planner.py",
        bound_s=900,
    ),
    Bench(
        ("planner-binds",),
        "placements a second, end to end, over pods that kube-scheduler binds a second",
        "placements.py",
        bound_s=900,
    ),
    Bench(
        (
            "gateway-json",
            "gateway-sse",
            "gateway-body",
            "gateway-delay-p99",
            "gateway-tokens",
            "gateway-added-first",
            "gateway-added-token",
            "gateway-memory",
        ),
        "the gateway beside Go's ReverseProxy, and beside the engine without anything between",
        "gateway/measure.py",
        bound_s=900,
    ),
    Bench(
        ("gateway-prefix",),
        "prompt tokens read anew by several runners: by free slots only, over by prefix",
        "prefix.py",
        bound_s=120,
    ),
    Bench(
        ("cold-start",),
        "seconds to the first token of a model that is not loaded, over the engine's own",
        "cold_start.py",
        bound_s=900,
    ),
    Bench(
        ("reload-host",),
        "loading from a copy in host memory, over loading from disk",
        "reload_host.py",
        bound_s=600,
    ),
)


def main(argv: Sequence[str]) -> int:
    # A shell that starts us in the background has the signal ignored, and our children with us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given, extra = _split(list(argv))
    options = _parser().parse_args(given)
    if options.list:
        for bench in BENCHES:
            print(f"{' '.join(bench.figures):20}  {bench.what}")
        return 0
    missing = [name for bench in chosen(options.names) for name in run(bench, extra)]
    for name in missing:
        print(f"{name}: no figure, and no word why")
    return 1 if missing else 0


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="what there is, and what it measures")
    parser.add_argument("names", nargs="*", metavar="NAME", help="all when none is named")
    return parser


def chosen(names: Sequence[str]) -> list[Bench]:
    """The benchmarks that have one of these figures, in their own order; SystemExit for an unknown one."""
    every = [figure for bench in BENCHES for figure in bench.figures]
    for name in names:
        if not any(_means(name, figure) for figure in every):
            raise SystemExit(f"there is no figure {name}; there are {', '.join(every)}")
    return [
        bench
        for bench in BENCHES
        if not names or any(_means(name, figure) for name in names for figure in bench.figures)
    ]


def _means(name: str, figure: str) -> bool:
    return figure == name or figure.startswith(f"{name}-")


def run(bench: Bench, extra: Sequence[str] = ()) -> list[str]:
    """Run it and pass on what it prints; the figures that are neither there nor explained."""
    print(f"# {' '.join(bench.figures)}: {bench.what}", flush=True)
    if bench.why_not:
        lines = [f"skip {figure}: {bench.why_not}" for figure in bench.figures]
        print("\n".join(lines))
    else:
        lines = _printed(bench, extra)
    return [figure for figure in bench.figures if not _is_told(figure, lines)]


def _is_told(figure: str, lines: Sequence[str]) -> bool:
    return any(line.startswith((f"ratio {figure} ", f"skip {figure}: ")) for line in lines)


def _printed(bench: Bench, extra: Sequence[str]) -> list[str]:
    """The lines of its output. Past its bound it is told to end, and has a minute to tidy up."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / bench.script), *extra],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE.parent), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    timers = [
        threading.Timer(bench.bound_s, _too_long, [child, bench]),
        threading.Timer(bench.bound_s + LEAVE_S, _end, [child, signal.SIGKILL]),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    lines = []
    try:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
        child.wait()
    except KeyboardInterrupt:
        _end(child, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(LEAVE_S)
        raise
    finally:
        for timer in timers:
            timer.cancel()
        _end(child, signal.SIGKILL)
    return lines


def _too_long(child: subprocess.Popen[str], bench: Bench) -> None:
    print(f"# {' '.join(bench.figures)}: not done within {bench.bound_s} s, told to end")
    _end(child, signal.SIGINT)


def _end(child: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal the benchmark and whatever it forked into its own session."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
