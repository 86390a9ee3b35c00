"""Which release is this?"""

from importlib import metadata

import click


@click.command()
def version() -> None:
    """Show the release of this command."""
    click.echo(f"berth {metadata.version('berth-operator')}")
