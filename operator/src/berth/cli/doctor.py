"""Is Berth installed, does each of its programs work, and does the endpoint answer?"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass

import click
import httpx

from berth.api.inventory import NodeInventory
from berth.api.kinds import KINDS
from berth.api.meta import GROUP, VERSION
from berth.cli.cluster import Target, cluster_options, connected, list_all, run
from berth.cli.show import show_json
from berth.kube.client import ApiError, ApiUnreachableError, Kube, Object
from berth.kube.refs import CRDS, LEASES, SERVICES, Ref
from berth.settings import Settings

DEPLOYMENTS = Ref("apps/v1", "Deployment", "deployments", namespaced=True)
DAEMON_SETS = Ref("apps/v1", "DaemonSet", "daemonsets", namespaced=True)
_PROXY_S = 10
"""The API server itself waits longer for a Service that has nobody behind it."""
INSTALL = "install the chart (docs/how-to)"


@dataclass(frozen=True)
class Finding:
    """One check's result: what it looked at, what it saw, and what to do where that is not well."""

    what: str
    seen: str
    todo: str = ""

    @property
    def is_well(self) -> bool:
        return not self.todo


Check = Callable[[Kube, str], Awaitable[Finding]]


@click.command()
@click.option("--system-namespace", default="", help="Namespace of Berth's programs.")
@click.option("--endpoint", default="", help="Ask this URL too, such as http://localhost:8080.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def doctor(*, target: Target, system_namespace: str, endpoint: str, as_json: bool) -> None:
    """Check that Berth is installed and answers; the exit code is 1 where something is not well."""
    namespace = system_namespace or Settings().text("NAMESPACE")
    found = run(_examine(target, namespace, endpoint), attempted="examining the cluster")
    if as_json:
        show_json([asdict(finding) | {"isWell": finding.is_well} for finding in found])
    else:
        for finding in found:
            click.echo(_line(finding))
    if not all(finding.is_well for finding in found):
        raise click.exceptions.Exit(1)


def _line(finding: Finding) -> str:
    mark = "ok  " if finding.is_well else "FAIL"
    return f"{mark}  {finding.what}: {finding.seen}" + (
        "" if finding.is_well else f"\n      to do: {finding.todo}"
    )


async def _examine(target: Target, namespace: str, endpoint: str) -> list[Finding]:
    async with connected(target) as kube:
        found = [finding async for finding in _checked(kube, namespace)]
    if endpoint:
        found.append(await check_endpoint(endpoint))
    return found


async def _checked(kube: Kube, namespace: str) -> AsyncIterator[Finding]:
    for name, check in CHECKS:
        try:
            yield await check(kube, namespace)
        except ApiError as err:
            yield Finding(name, err.message, "run it again with the rights of an administrator")


async def check_server(kube: Kube, namespace: str) -> Finding:
    version = json.loads(await kube.raw("/version"))["gitVersion"]
    return Finding("API server", f"answers, {version}")


async def check_kinds(kube: Kube, namespace: str) -> Finding:
    objects, _ = await kube.list_all(CRDS)
    have = {crd["metadata"]["name"]: crd for crd in objects}
    missing = [i.kind for i in KINDS if not _serves(have.get(f"{i.plural}.{GROUP}"))]
    if missing:
        return Finding("kinds", f"not served: {', '.join(missing)}", INSTALL)
    return Finding("kinds", f"all {len(KINDS)} are served")


def _serves(crd: Object | None) -> bool:
    return crd is not None and any(
        v["name"] == VERSION and v["served"] for v in crd["spec"]["versions"]
    )


async def check_controller(kube: Kube, namespace: str) -> Finding:
    finding = await _deployment(kube, namespace, "controller")
    if not finding.is_well:
        return finding
    try:
        lease = await kube.get(LEASES, "berth-controller", namespace)
    except ApiError as err:
        if not err.not_found:
            raise
        return Finding("controller", "nobody leads", f"see {_logs(namespace, 'controller')}")
    return Finding("controller", f"{finding.seen}; {lease['spec'].get('holderIdentity')} leads")


async def check_gateway(kube: Kube, namespace: str) -> Finding:
    return await _deployment(kube, namespace, "gateway")


async def _deployment(kube: Kube, namespace: str, program: str) -> Finding:
    obj = await _get(kube, DEPLOYMENTS, f"berth-{program}", namespace)
    if obj is None:
        return Finding(program, f"no Deployment berth-{program} in {namespace}", INSTALL)
    wanted = obj["spec"].get("replicas", 1)
    up = obj.get("status", {}).get("availableReplicas", 0)
    seen = f"{up} of {wanted} available"
    return Finding(program, seen, "" if up else f"see {_logs(namespace, program)}")


async def check_agents(kube: Kube, namespace: str) -> Finding:
    obj = await _get(kube, DAEMON_SETS, "berth-agent", namespace)
    if obj is None:
        return Finding("agents", f"no DaemonSet berth-agent in {namespace}", INSTALL)
    status = obj.get("status", {})
    wanted, up = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    reported = len(await list_all(kube, NodeInventory))
    seen = f"{up} of {wanted} ready, {reported} inventories"
    is_well = wanted and up == wanted and reported >= wanted
    return Finding("agents", seen, "" if is_well else f"see {_logs(namespace, 'agent')}")


async def check_service(kube: Kube, namespace: str) -> Finding:
    """The endpoint from inside: the API server passes the question on."""
    if await _get(kube, SERVICES, "berth-gateway", namespace) is None:
        return Finding("endpoint", f"no Service berth-gateway in {namespace}", INSTALL)
    path = f"/api/v1/namespaces/{namespace}/services/berth-gateway:http/proxy/v1/models"
    try:
        async with asyncio.timeout(_PROXY_S):
            answer = json.loads(await kube.raw(path))
    except ApiError as err:
        if err.status == httpx.codes.UNAUTHORIZED:
            return Finding("endpoint", "answers, and asks for an API key")
        return Finding("endpoint", str(err), f"see {_logs(namespace, 'gateway')}")
    except (ApiUnreachableError, TimeoutError):
        seen = f"the Service berth-gateway did not answer in {_PROXY_S} s"
        return Finding("endpoint", seen, f"see {_logs(namespace, 'gateway')}")
    return Finding("endpoint", f"answers, {len(answer['data'])} models")


async def check_endpoint(url: str) -> Finding:
    """The endpoint as clients reach it."""
    todo = "check the address, and that the way to the Service berth-gateway is open"
    try:
        async with httpx.AsyncClient(timeout=10) as client:
            answer = await client.get(f"{url.rstrip('/').removesuffix('/v1')}/v1/models")
    except httpx.HTTPError as err:
        return Finding(url, str(err) or type(err).__name__, todo)
    is_well = answer.status_code in (httpx.codes.OK, httpx.codes.UNAUTHORIZED)
    return Finding(url, f"answers {answer.status_code}", "" if is_well else todo)


async def _get(kube: Kube, ref: Ref, name: str, namespace: str) -> Object | None:
    try:
        return await kube.get(ref, name, namespace)
    except ApiError as err:
        if err.not_found:
            return None
        raise


def _logs(namespace: str, program: str) -> str:
    return f"kubectl -n {namespace} logs -l app.kubernetes.io/component={program}"


CHECKS: tuple[tuple[str, Check], ...] = (
    ("API server", check_server),
    ("kinds", check_kinds),
    ("controller", check_controller),
    ("agents", check_agents),
    ("gateway", check_gateway),
    ("endpoint", check_service),
)
