"""Which objects does Berth write, and with which exact content? Pure functions to dicts."""
