"""Connections to web servers, timed and optionally restricted to public addresses."""

import functools
import socket
import time
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NameResolutionError,
    NewConnectionError,
)
from urllib3.util import Timeout
from urllib3.util.connection import create_connection

from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.reach.addresses import is_public
from reelweave.loader.storage.remote.timeouts import RequestLimits, TimedConnection

_MOST_ADDRESSES = 16
"""Maximum number of a host's addresses to try."""


class NotPublicError(HTTPError):
    """Host without public addresses, where only public ones are allowed.

    Args:
        host: name of the host.
        address: one of its addresses.
    """

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} is at {address}")
        self.host, self.address = host, address


class _WebConnection(TimedConnection):
    """Connection to addresses resolved and checked here, so that no second lookup can return others."""

    only_public = False

    def _new_conn(self) -> socket.socket:
        timeout_s = self.timeout if isinstance(self.timeout, int | float) else None
        until = None if timeout_s is None else time.monotonic() + timeout_s
        problem: OSError = OSError("no address")
        for address in self._addresses():
            left_s = timeout_s if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                problem = TimeoutError("its addresses took too long")
                break
            try:
                return create_connection((address, self.port), left_s, None, self.socket_options)
            except OSError as error:
                problem = error
        if isinstance(problem, TimeoutError):
            raise ConnectTimeoutError(self, f"connecting to {self.host} took too long") from problem
        raise NewConnectionError(self, f"no connection to {self.host}: {problem}") from problem

    def _addresses(self) -> list[str]:
        """Return the host's permitted addresses.

        Raises:
            NotPublicError: none is permitted.
        """
        host = self._dns_host.strip("[]")
        try:
            host.encode("idna")
            infos = socket.getaddrinfo(host, self.port, 0, socket.SOCK_STREAM)
        except UnicodeError:
            raise LocationParseError(f"{host!r}, label empty or too long") from None
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
        allowed = [address for address in addresses if not self.only_public or is_public(address)]
        if addresses and not allowed:
            raise NotPublicError(self.host, addresses[0])
        return allowed[:_MOST_ADDRESSES]


class _TlsWebConnection(_WebConnection, HTTPSConnection):
    pass


def proxy_of(scheme: str, host: str) -> str | None:
    """Return the URL of the proxy that the environment sets for a scheme and a host, or None."""
    return None if proxy_bypass(host) else getproxies().get(scheme)


@functools.lru_cache(maxsize=16)
def pools(config: StorageConfig, proxy: str | None, only_public: bool, pid: int) -> urllib3.PoolManager:  # noqa: ARG001 - key
    """Return the connection pools of this process; shared by threads, not by forked processes.

    Args:
        config: timeouts.
        proxy: URL of the proxy, which resolves names itself; None for no proxy.
        only_public: True to restrict connections without a proxy to public addresses.
        pid: id of this process.
    """
    timeout = Timeout(connect=config.connect_timeout_s, read=config.read_timeout_s)
    manager = (
        urllib3.ProxyManager(proxy, num_pools=32, maxsize=64, timeout=timeout)
        if proxy
        else urllib3.PoolManager(num_pools=32, maxsize=64, timeout=timeout)
    )
    limits = RequestLimits.of(config)
    manager.pool_classes_by_scheme = {
        # The environment sets the proxy, so its address may be private.
        "http": _pool_class(urllib3.HTTPConnectionPool, _WebConnection, limits, only_public and not proxy),
        "https": _pool_class(
            urllib3.HTTPSConnectionPool, _TlsWebConnection, limits, only_public and not proxy
        ),
    }
    return manager


def _pool_class(
    pool: type[urllib3.HTTPConnectionPool],
    connection: type[_WebConnection],
    limits: RequestLimits,
    only_public: bool,
) -> type[urllib3.HTTPConnectionPool]:
    limited = type(connection.__name__, (connection,), {"limits": limits, "only_public": only_public})
    return type(pool.__name__, (pool,), {"ConnectionCls": limited})
