"""What do all tests share? How hypothesis looks for counterexamples."""

import os

from hypothesis import settings

# CI judges a change by the same examples each time; everybody's own runs look for new ones.
settings.register_profile("ci", derandomize=True, print_blob=True)
settings.register_profile("dev", print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
