"""How does Berth talk to the API server? The only package that does."""
