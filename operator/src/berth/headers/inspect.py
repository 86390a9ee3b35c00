"""What is in the files of a mounted claim? ``python3 -m berth.headers.inspect weights=PATH [NAME=PATH …]``

Run by the inspecting pod: reads each header in a child process, as everywhere, and leaves the facts, or
why there are none, where the kubelet takes a pod's termination message from. Exit status 1: none.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from berth.headers.errors import HeaderError
from berth.headers.pool import HeaderPool
from berth.headers.report import encode, encode_error
from berth.headers.request import HeaderRequest, PathSource

TERMINATION_LOG = "/dev/termination-log"


async def inspect(paths: Mapping[str, str]) -> str:
    """The message about the files at these paths by part. Raises HeaderError."""
    pool = HeaderPool(total=1)
    return encode(
        {
            name: await pool.read(HeaderRequest(source=PathSource(path)))
            for name, path in paths.items()
        }
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, report, say how it went on the log as well."""
    parser = argparse.ArgumentParser(prog="berth.headers.inspect", description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="NAME=PATH")
    parser.add_argument("--report", default=TERMINATION_LOG, help="file that gets the message")
    asked = parser.parse_args(arguments)
    paths = dict(pair.split("=", 1) for pair in asked.paths)
    try:
        message, status = asyncio.run(inspect(paths)), 0
    except HeaderError as err:
        message, status = encode_error(err), 1
        sys.stderr.write(f"{err.reason}: {err.message}\n")
    Path(asked.report).write_text(message, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
