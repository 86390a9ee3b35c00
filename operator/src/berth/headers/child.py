"""The program that reads one header in a process of its own: a request as JSON in, a result or an error out.

It takes its limits before it looks at the request, so that no file can make it take more.
"""

import json
import resource
import sys

ADDRESS_SPACE = 512 << 20
CPU_SECONDS = 10


def main() -> None:
    """Read one request from standard input, answer on standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    json.dump(_answer(json.load(sys.stdin)), sys.stdout, separators=(",", ":"))


def _answer(row: dict[str, object]) -> dict[str, object]:
    from berth.headers.errors import HeaderError, HeaderReason
    from berth.headers.read import read_source
    from berth.headers.request import HeaderRequest

    try:
        return {"result": read_source(HeaderRequest.from_json(row)).to_json()}
    except HeaderError as err:
        return {"reason": err.reason.value, "message": err.message}
    except MemoryError:
        return {
            "reason": HeaderReason.INVALID_HEADER.value,
            "message": "the header needs more memory than it may take",
        }


if __name__ == "__main__":
    main()
