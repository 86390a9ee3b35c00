"""What do all tests share? How hypothesis looks for counterexamples, and what a signal means."""

import os
import signal

from hypothesis import settings

# CI judges a change by the same examples each time; everybody's own runs look for new ones.
settings.register_profile("ci", derandomize=True, print_blob=True)
settings.register_profile("dev", print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# A shell that starts the tests in the background has this signal ignored, and what they start would be
# born deaf to it.
signal.signal(signal.SIGINT, signal.default_int_handler)
