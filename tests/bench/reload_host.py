"""How much faster is a load from a copy in host memory than one from disk?

``python tests/bench/reload_host.py [--rounds N] [--model FILE]``, as root. In each round llama-server loads
the same file, timed from exec to a healthy answer,

- *disk*: with the file's pages dropped from the page cache;
- *copy*: dropped in the same way, then held by the holder's own program, as in its pod.

It reads the whole file into memory of its own (``--load-mode none``), as an engine does that copies weights to a
GPU. ``ratio reload-host`` is the median of the copy's seconds over the median of the disk's; the seconds
that the bare reading of the file takes are shown beside it.
"""

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster import images, model, ports
from cluster.problem import Problem
from cluster.unpack import unpack

FIGURE, GOAL = "reload-host", 1.0
DEADLINE_S = 300.0
LOOK_S = 0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--model", type=Path, help="a GGUF file; the small one of the tests if not given"
    )
    options = parser.parse_args()
    if os.geteuid() != 0:
        print(f"skip {FIGURE}: it takes root to enter the engine's root folder and to lock memory")
        return 0
    try:
        measure(options.model or model.gguf(), options.rounds)
    except Problem as problem:
        print(f"skip {FIGURE}: {problem.what}".splitlines()[0])
    return 0


def measure(source: Path, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="berth-reload-") as folder:
        root = Path(folder)
        unpack(images.built(images.LLAMACPP).archive, root)
        file = root / "models" / "m.gguf"
        file.write_bytes(source.read_bytes())
        os.sync()
        disk, copy, reads = [], [], []
        for _ in range(rounds):
            drop(file)
            disk.append(load_s(root))
            drop(file)
            with held(file):
                reads.append(read_s(file))
                copy.append(load_s(root))
        drop(file)
        cold = read_s(file)
    print(f"# {source.stat().st_size} bytes, {rounds} rounds")
    print(f"# disk  {shown(disk)} s to healthy; the bare reading takes {cold:.3f} s")
    print(
        f"# copy  {shown(copy)} s to healthy; the bare reading takes {statistics.median(reads):.3f} s"
    )
    ratio = statistics.median(copy) / statistics.median(disk)
    print(f"ratio {FIGURE} {ratio:.3f} goal <= {GOAL}")
    print(f"ratio {FIGURE}-read {statistics.median(reads) / cold:.3f} goal <= {GOAL}")


def shown(seconds: list[float]) -> str:
    return " ".join(f"{one:.3f}" for one in seconds)


def drop(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def read_s(file: Path) -> float:
    began = time.monotonic()
    with file.open("rb", buffering=0) as stream:
        buffer = bytearray(1 << 20)
        while stream.readinto(buffer):
            pass
    return time.monotonic() - began


@contextmanager
def held(file: Path) -> Iterator[None]:
    """The holder's program, once it says that every page is locked."""
    command = [sys.executable, "-m", "berth.runner.holder", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        said = holder.stdout.readline()
        try:
            if "are held" not in said:
                raise Problem(f"the holder said: {said.strip()}", todo="see its message")
            yield
        finally:
            holder.terminate()
            holder.wait()


def load_s(root: Path) -> float:
    """Seconds from exec to a healthy answer; the engine is ended then."""
    (port,) = ports.free(1)
    flags = "-c 512 -np 1 --load-mode none --no-warmup --cache-ram 0 --fit off"
    program = ["chroot", str(root), "/usr/bin/llama-server", "-m", "/models/m.gguf"]
    command = [*program, "--port", str(port), *flags.split()]
    began = time.monotonic()
    engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_healthy(port):
            if engine.poll() is not None or time.monotonic() - began > DEADLINE_S:
                raise Problem("the engine did not come up", todo="run it by hand")
            time.sleep(LOOK_S)
        return time.monotonic() - began
    finally:
        engine.kill()
        engine.wait()


def is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
