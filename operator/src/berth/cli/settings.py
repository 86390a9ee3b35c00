"""Which settings are there, and what is in effect?"""

import click

from berth.cli.show import show_json, show_table
from berth.settings import Settings

HEADERS = ("variable", "value", "default", "read by", "what it does")
CONFIG_MAP = "berth-settings"


@click.command()
@click.option(
    "--cluster", is_flag=True, help="What the chart wrote there, not the environment here."
)
@click.option("--system-namespace", default="", help="Namespace of Berth's programs.")
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", help="Kubeconfig file.")
@click.option("--context", default="", help="Context of the kubeconfig.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def settings(
    *, cluster: bool, system_namespace: str, kubeconfig: str, context: str, as_json: bool
) -> None:
    """Show every setting with its value in effect, its default and who reads it."""
    found = Settings()
    if cluster:
        found = _of_cluster(system_namespace or found.text("NAMESPACE"), kubeconfig, context)
    rows = found.describe()
    if as_json:
        show_json(rows)
    else:
        show_table(
            HEADERS, [(r["name"], r["value"], r["default"], r["readBy"], r["what"]) for r in rows]
        )


def _of_cluster(namespace: str, kubeconfig: str, context: str) -> Settings:
    # Only here, so that the settings of this process need no Kubernetes client.
    from berth.cli.cluster import Target, connected, run
    from berth.kube.refs import CONFIG_MAPS

    async def read() -> dict[str, str]:
        async with connected(Target(kubeconfig, context)) as kube:
            return (await kube.get(CONFIG_MAPS, CONFIG_MAP, namespace)).get("data") or {}

    return Settings(run(read(), attempted=f"reading the ConfigMap {namespace}/{CONFIG_MAP}"))
