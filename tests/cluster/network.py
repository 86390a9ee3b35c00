"""What does one node add to the host's network, and how does all of it go away again?

A bridge of our own whose address is the node's; one nftables table of our own that lets pods out
and keeps strangers off the cluster's ports; and the settings of the kernel that kubelet and
kube-proxy change, which are written down first and put back at the end.
"""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.problem import Problem

TABLE = "berth-test"
CNI_NAME = "berth-test"
# kube-proxy names its tables itself; where one exists another kube-proxy is at work.
KUBE_PROXY_TABLES = ("ip kube-proxy", "ip6 kube-proxy")
CHANGED_BY_KUBERNETES = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


@dataclass(frozen=True)
class Network:
    """The addresses of one node and its pods."""

    bridge: str = "berth0"
    address: str = "10.45.0.1"
    pods: str = "10.45.0.0/24"
    pods_everywhere: str = "10.45.0.0/16"

    @property
    def prefix(self) -> str:
        return self.pods.rpartition("/")[2]


def run(*command: str, stdin: str | None = None) -> str:
    """What a tool prints; raises Problem with its own words where it fails."""
    answer = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise Problem(
            f"`{' '.join(command)}` failed: {answer.stderr.strip()}",
            todo="see the message; setting up a node needs root and a kernel with nftables",
        )
    return answer.stdout


def set_up(network: Network, *, state_dir: Path, guarded_ports: Sequence[int]) -> None:
    """Makes the bridge, the table and the forwarding; asking again changes nothing.

    `guarded_ports` listen on every address and are to be reached from this host and its pods only.
    """
    holder = owner(network)
    if holder not in (None, str(state_dir)):
        raise Problem(
            f"this host is the node of another cluster, {holder or 'of nobody known'}",
            todo="end that one first: `make down` in its checkout",
        )
    _remember_kernel_settings(state_dir)
    if holder is None:
        _refuse_foreign(network)
        run("ip", "link", "add", network.bridge, "type", "bridge")
        # Another cluster's `down` must not take this one's network away.
        run("ip", "link", "set", network.bridge, "alias", str(state_dir))
        run("ip", "address", "add", f"{network.address}/{network.prefix}", "dev", network.bridge)
        run("ip", "link", "set", network.bridge, "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    run("nft", "-f", "-", stdin=_ruleset(network, guarded_ports))


def tear_down(network: Network, *, state_dir: Path) -> None:
    """Takes away what `set_up` made for this very folder, and nothing of another cluster's."""
    if owner(network) == str(state_dir):
        for table in (f"inet {TABLE}", *KUBE_PROXY_TABLES):
            if table in tables():
                run("nft", "delete", "table", *table.split())
        run("ip", "link", "delete", network.bridge)
    _restore_kernel_settings(state_dir)


def leftovers(network: Network, *, state_dir: Path) -> list[str]:
    """What this folder's cluster left on the host, in words; empty after a clean end."""
    holder = owner(network)
    if holder not in (None, str(state_dir)):
        return []
    ours = {f"inet {TABLE}", *KUBE_PROXY_TABLES}
    found = [f"nftables table {table}" for table in tables() if table in ours]
    return found + ([f"network link {network.bridge}"] if holder else [])


def owner(network: Network) -> str | None:
    """The folder of the cluster that the bridge was made for; None where there is no bridge."""
    for link in json.loads(run("ip", "-json", "link", "show")):
        if link["ifname"] == network.bridge:
            return str(link.get("ifalias", ""))
    return None


def tables() -> list[str]:
    """Each as nft names it: a family and a name."""
    said = json.loads(run("nft", "--json", "list", "tables"))["nftables"]
    return [f"{e['table']['family']} {e['table']['name']}" for e in said if "table" in e]


def cni_config(network: Network, *, state_dir: Path) -> str:
    bridge = {
        "type": "bridge",
        "bridge": network.bridge,
        "isGateway": True,
        "hairpinMode": True,
        # Masquerading is the table's: the plugin would do it with iptables.
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": network.pods, "gateway": network.address}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(state_dir / "cni-addresses"),
        },
    }
    return json.dumps({"cniVersion": "0.4.0", "name": CNI_NAME, "plugins": [bridge]}, indent=1)


def _ruleset(network: Network, guarded_ports: Sequence[int]) -> str:
    ports = ", ".join(str(port) for port in guarded_ports)
    # The first two lines make a second load replace the table instead of adding to it.
    return f"""
table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
  chain from-outside {{
    type filter hook input priority filter; policy accept;
    iifname {{ "lo", "{network.bridge}" }} accept
    tcp dport {{ {ports} }} drop
  }}
  chain to-outside {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {network.pods} ip daddr != {network.pods_everywhere} oifname != "{network.bridge}" masquerade
  }}
}}
"""


def _refuse_foreign(network: Network) -> None:
    if any(table in tables() for table in KUBE_PROXY_TABLES):
        raise Problem(
            "another kube-proxy works on this host (its nftables table exists)",
            todo="use that cluster with `make up CLUSTER=current`, or end it first",
        )
    routes = json.loads(run("ip", "-json", "route", "show", "to", "match", network.address))
    taken = [route for route in routes if route["dst"] != "default"]
    if taken:
        raise Problem(
            f"{network.pods}, wanted for pods, is routed already to {taken[0].get('dev')}",
            todo="take that route away, or use another cluster with `make up CLUSTER=current`",
        )


def _remember_kernel_settings(state_dir: Path) -> None:
    record = state_dir / "kernel-settings.json"
    if record.exists():
        return
    there = [name for name in CHANGED_BY_KUBERNETES if (Path("/proc/sys") / name).exists()]
    values = {name: (Path("/proc/sys") / name).read_text().strip() for name in there}
    record.write_text(json.dumps(values, indent=1))


def _restore_kernel_settings(state_dir: Path) -> None:
    record = state_dir / "kernel-settings.json"
    if not record.exists():
        return
    for name, value in json.loads(record.read_text()).items():
        path = Path("/proc/sys") / name
        if path.read_text().strip() != value:
            path.write_text(value)
    record.unlink()
