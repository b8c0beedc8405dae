"""Checks of the ``Host`` header of requests, which a page of another site cannot set."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_name(header: str, port: int) -> str | None:
    """Return the name or address of a ``Host`` header in lower case; None if it names another port, or nothing.

    Args:
        header: the header.
        port: port of the server; a header without one names port 80.
    """
    try:
        parts = urlsplit(f"//{header}")
        named_port, name = parts.port, (parts.hostname or "").lower()
    except ValueError:
        return None
    return name if name and (80 if named_port is None else named_port) == port else None


def names_loopback(header: str, port: int, host: str) -> bool:
    """Return whether a ``Host`` header names a server on loopback.

    Args:
        header: the header.
        port: port of the server.
        host: address that it listens on.
    """
    return host_name(header, port) in ("localhost", "127.0.0.1", "::1", host.lower())
