"""By which words do runner pods and the volume driver of their node understand each other?

Nothing is imported here: the driver is a small program beside the agent.
"""

DRIVER = "store.berth.dev"
ATTRIBUTE = "volume"
"""What a volume of this driver says of itself: which of the pod's folders it is."""
WEIGHTS = "weights"
SESSIONS = "sessions"
