"""Names and addresses of a test: no look-up and no connection leaves this machine.

network = pretend(monkeypatch, {"films.example": "1.2.3.4"}, {"1.2.3.4": server.url})
"""

import socket
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

_LOOPBACK = ("127.0.0.1", "::1")


@dataclass
class Network:
    """What was looked up and connected to.

    Attributes:
        names: host -> its addresses; a list of lists answers each look-up with the next one.
        servers: address -> URL of the loopback server that stands for it, whatever the port.
        looked_up: hosts.
        connected: addresses, as the program asked for them.
    """

    names: dict[str, Any]
    servers: dict[str, str]
    looked_up: list[str] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)

    def addresses(self, host: str) -> list[str]:
        known = self.names.get(host)
        if isinstance(known, list) and known and isinstance(known[0], list):
            return list(known.pop(0) if len(known) > 1 else known[0])
        return [known] if isinstance(known, str) else list(known or ())


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    names: dict[str, Any] | None = None,
    servers: dict[str, str] | None = None,
) -> Network:
    """Answers look-ups from a table and leads connections to loopback; every other connection is an error."""
    network = Network(names or {}, servers or {})
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def getaddrinfo(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        network.looked_up.append(host)
        addresses = network.addresses(host)
        if not addresses:
            try:
                return look_up(host, port, *more, **{**options, "flags": socket.AI_NUMERICHOST})
            except socket.gaierror:
                raise socket.gaierror(socket.EAI_NONAME, "no such host in this test") from None
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in addresses
        ]

    def connected(sock: socket.socket, place: Any) -> None:
        address = place[0]
        network.connected.append(address)
        if address in network.servers:
            place = ("127.0.0.1", urlsplit(network.servers[address]).port)
        assert place[0] in _LOOPBACK, f"a test would have sent packets to {place}"
        connect(sock, place)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket.socket, "connect", connected)
    return network
