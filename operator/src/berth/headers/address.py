"""May this address be reached for a stranger's URL?

The policy is applied to every address that a host resolves to, and the connection goes to the address that
was checked, so a name that changes its mind between the check and the connection gains nothing.
"""

import ipaddress
import socket
from dataclasses import dataclass

from berth.headers.errors import HeaderError, HeaderReason

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class SourcePolicy:
    """Public addresses may be reached; of others only those that ``allow`` names.

    ``allow`` holds hosts (``hub.internal``), hosts with a port (``127.0.0.1:8080``) and CIDRs
    (``10.0.0.0/8``). Link-local addresses, where clouds serve credentials, need a CIDR of their own.
    """

    allow: tuple[str, ...] = ()

    def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of ``host`` that may be reached.

        Raises HeaderError: SourceUnreachable where it has none, SourceForbidden where none may be reached.
        """
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as err:
            raise HeaderError(
                HeaderReason.SOURCE_UNREACHABLE, f"the host {host} has no address: {err}"
            ) from err
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        good = [address for address in addresses if self.permits(host, port, address)]
        if not good:
            raise HeaderError(
                HeaderReason.SOURCE_FORBIDDEN,
                f"the host {host} is at {addresses[0]}, which is not public; list it as an allowed source to reach it",
            )
        return good

    def permits(self, host: str, port: int, address: str) -> bool:
        """Whether ``address``, to which ``host`` resolved, may be reached."""
        parsed = _plain(ipaddress.ip_address(address.partition("%")[0]))
        if any(_covers(entry, parsed) for entry in self.allow):
            return True
        named = host.lower() in self.allow or f"{host.lower()}:{port}" in self.allow
        if named and not parsed.is_link_local:
            return True
        return parsed.is_global and not parsed.is_multicast


def _plain(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one (mapped, 6to4 or NAT64), else the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in ipaddress.IPv6Network("64:ff9b::/96"):
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _covers(entry: str, address: Address) -> bool:
    if "/" not in entry:
        return False
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return address.version == network.version and address in network
