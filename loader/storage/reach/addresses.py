"""Public and private network addresses, and addresses that a host name spells without a lookup."""

import ipaddress
import socket
import unicodedata

_EMBEDDING = (
    (ipaddress.ip_network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ipaddress.ip_network("64:ff9b::/96"), 0),  # NAT64, RFC 6052
    (ipaddress.ip_network("2002::/16"), 80),  # 6to4, RFC 3056
)
"""IPv6 networks that embed an IPv4 address, and the number of bits behind that address."""

_UNICAST6 = ipaddress.ip_network("2000::/3")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "100.64.0.0/10",  # behind a carrier's NAT
        "168.63.129.16/32",  # Azure's platform service, on every machine there
        "192.0.0.0/24",  # protocols; Oracle's metadata service
        "192.88.99.0/24",  # 6to4 relays
        "198.18.0.0/15",  # tests of networks
        "2001::/23",  # protocols; Teredo
        "2001:db8::/32",
        "3fff::/20",
    )
)


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet, not to a private network or a machine's services.

    An IPv6 address that embeds an IPv4 address is judged as the latter. Multicast, reserved and documentation addresses
    are not public.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        for network, shift in _EMBEDDING:
            if parsed in network:
                return is_public(str(ipaddress.IPv4Address((int(parsed) >> shift) & 0xFFFFFFFF)))
        if parsed not in _UNICAST6:
            return False
    return (
        parsed.is_global
        and not (parsed.is_multicast or parsed.is_reserved)
        and not any(parsed.version == network.version and parsed in network for network in _NOT_PUBLIC)
    )


def written_address(host: str) -> str | None:
    """Return the IP address that a host name itself spells, or None for a name that needs a lookup.

    ``localhost`` and every spelling that resolvers take for an IPv4 address count: ``127.1``, ``0x7f000001``,
    ``2130706433``, ``0177.0.0.1``, full-width digits.
    """
    host = unicodedata.normalize("NFKC", host).strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host)) if host.isascii() and " " not in host else None
    except OSError:
        return None
