"""Where does the container begin? ``python3 -m berth.runner``, configured by ``BERTH_RUNNER``."""

import os
import sys

from berth.runner.config import BadConfigError, RunnerConfig, load_config
from berth.runner.exits import ExitCode
from berth.runner.report import render_report, write_report
from berth.runner.supervisor import Supervisor
from berth.runner.verdict import Verdict


def main() -> int:
    """Run the configured engine to its end; the exit code is an `ExitCode`."""
    try:
        config = load_config(os.environ)
    except BadConfigError as err:
        verdict = Verdict(ExitCode.BAD_CONFIG, str(err))
        write_report(RunnerConfig.termination_log, render_report(verdict, None, []))
        print(f"error: runner: {verdict.message}", file=sys.stderr)  # noqa: T201 - nothing else runs
        return verdict.code
    return Supervisor(config).run()


if __name__ == "__main__":
    sys.exit(main())
