"""How is Berth let to read the one Secret that holds a source's token?"""

import click
import yaml

from berth.cli.cluster import Target, cluster_options, connected, run
from berth.kube.refs import Ref
from berth.manifests.grants import token_grant
from berth.manifests.names import Object
from berth.settings import Settings

_RBAC = "rbac.authorization.k8s.io/v1"
REFS = {
    "Role": Ref(_RBAC, "Role", "roles", namespaced=True),
    "RoleBinding": Ref(_RBAC, "RoleBinding", "rolebindings", namespaced=True),
}


@click.command("grant-token")
@click.argument("secret")
@click.option("--system-namespace", default="", help="Namespace of Berth's programs.")
@click.option("--print", "only_print", is_flag=True, help="Print the objects, write nothing.")
@cluster_options
def grant_token(*, secret: str, target: Target, system_namespace: str, only_print: bool) -> None:
    """Let Berth read SECRET, the token of a gated source, in its namespace, and no other Secret."""
    namespace = target.in_namespace
    system = system_namespace or Settings().text("NAMESPACE")
    objects = token_grant(secret, namespace=namespace, system_namespace=system)
    if only_print:
        click.echo(yaml.safe_dump_all(objects, sort_keys=False).rstrip())
        return
    run(_apply(objects, target), attempted=f"granting Berth the Secret {namespace}/{secret}")
    click.echo(f"Berth may read the Secret {namespace}/{secret}")


async def _apply(objects: list[Object], target: Target) -> None:
    async with connected(target) as kube:
        for obj in objects:
            meta = obj["metadata"]
            await kube.apply(
                REFS[obj["kind"]],
                meta["name"],
                obj,
                manager="berth-cli",
                namespace=meta["namespace"],
            )
