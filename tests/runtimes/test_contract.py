"""Does every built-in runtime keep the contract that plugins are held to?"""

from berth.runtimes.contract import *  # noqa: F403 - the tests and their fixture
