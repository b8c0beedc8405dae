"""One GET of the web: where it may go, redirects, and what of an answer is believed."""

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.util import make_headers

from loader.errors import ObjectError, UsageError
from loader.storage.config import StorageConfig
from loader.storage.names import redacted
from loader.storage.permissions import inner_address, only_public, refusal
from loader.storage.retry import StatusError
from loader.storage.web.connections import NotPublicError, pools

_CHUNK = 256 << 10
_REDIRECTS = (301, 302, 303, 307, 308)
_HOST = re.compile(r"[\w.-]+")


class WebError(ObjectError):
    """One web address cannot be read."""


class SilentError(WebError):
    """A server gave no whole answer in time; it would keep one waiting for its other objects as long."""


@dataclass(frozen=True)
class WebName:
    """An object of the web before any redirect.

    Attributes:
        name: of it, for messages; may be shown.
        address: may hold user, password and a query.
        listed_in: as of `loader.storage.permissions.refusal`.
    """

    name: str
    address: str
    listed_in: str = ""


@dataclass(frozen=True)
class WebResponse:
    """An answer whose body has not been read.

    Attributes:
        url: that gave it, after redirects; with its query, so not to be shown.
        response: status and headers.
    """

    url: str
    response: urllib3.BaseHTTPResponse

    def header(self, name: str) -> str:
        """A header's value, "" when it is missing."""
        return self.response.headers.get(name, "")

    def chunks(self) -> Iterator[bytes]:
        """The body, in pieces.

        Raises:
            urllib3.exceptions.HTTPError: it breaks off, or comes too slowly.
        """
        while chunk := self.response.read1(_CHUNK):
            yield chunk


def split_url(url: str) -> SplitResult:
    """The parts of a web address.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in ("http", "https")
            and _is_host(parts.hostname or "")
            and (parts.port is None or parts.port > 0)
            and not any(ord(letter) <= 32 or letter in "\\\x7f" for letter in parts.netloc)
        )
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{redacted(url)} is no web address; write http(s)://host/folder/name")
    return parts


def _is_host(host: str) -> bool:
    """Return whether every reader of addresses takes a host for the same one."""
    if ":" in host:
        return ipaddress.ip_address(host).version == 6 and "%" not in host
    return _HOST.fullmatch(host) is not None


@contextmanager
def get(url: str, headers: dict[str, str], config: StorageConfig, named: WebName) -> Iterator[WebResponse]:
    """Sends one GET and follows redirects to other web addresses; each is judged as a name where it was found.

    User and password of ``url`` go to the server it names and to no other. The answer is one the caller can
    use: 200, 206 or 416, and not compressed.

    Args:
        url: address of the object, or where a redirect led before.
        headers: to send beside the usual ones.
        config: timeouts, redirects and permissions.
        named: the object.

    Raises:
        FileNotFoundError: 404 or 410.
        StatusError: another refusal; `is_transient` tells whether it may pass.
        WebError: the answer cannot be used.
        urllib3.exceptions.HTTPError: the connection failed.
    """
    name, first = named.name, split_url(url)
    target = url
    for _ in range(config.max_redirects + 1):
        if problem := refusal(target, named.listed_in, config.allowed_prefixes):
            raise WebError(f"{name}: what its server redirects to {problem}")
        response = _send(target, headers, first, config, named)
        try:
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or not location:
                _check(response, name)
                yield WebResponse(target, response)
                return
            target = _redirected(target, location, name)
        finally:
            _leave(response)
    raise WebError(f"{name}: more than storage.max_redirects = {config.max_redirects} redirects")


def _send(
    target: str, headers: dict[str, str], first: SplitResult, config: StorageConfig, named: WebName
) -> urllib3.BaseHTTPResponse:
    parts = urlsplit(target)
    sent = {"Accept-Encoding": "identity", "User-Agent": "reelweave", **headers}
    if first.username is not None and _origin(parts) == _origin(first):
        login = f"{unquote(first.username)}:{unquote(first.password or '')}"
        sent |= make_headers(basic_auth=login)
    netloc = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))
    public = only_public(
        target, named.address, named.listed_in, config.allowed_prefixes, config.allow_private
    )
    host = parts.hostname or ""
    if public and (address := inner_address(host)):
        raise _not_public(named.name, host, address)
    proxy = None if proxy_bypass(netloc) else getproxies().get(parts.scheme)
    try:
        return pools(config, proxy, public, os.getpid()).request(
            "GET",
            bare,
            headers=sent,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
        )
    except NotPublicError as error:
        raise _not_public(named.name, error.host, error.address) from None


def _not_public(name: str, host: str, address: str) -> WebError:
    at = "" if host == address else f" at {address}"
    return WebError(
        f"{name} leads to {host}{at}, which is no public address; if that is meant, set storage.allow_private"
    )


def _redirected(target: str, location: str, name: str) -> str:
    try:
        parts = split_url(urljoin(target, location))
    except (UsageError, ValueError):
        raise WebError(f"{name}: the server redirects to something that is no web address") from None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def _check(response: urllib3.BaseHTTPResponse, name: str) -> None:
    status = response.status
    if status in (404, 410):
        raise FileNotFoundError(f"{name} does not exist")
    if status not in (200, 206, 416):
        wait = response.headers.get("Retry-After", "")
        raise StatusError(status, float(wait) if wait.isascii() and wait.isdigit() else 0.0)
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise WebError(
            f"{name}: the server compresses its answer although it was asked not to (Content-Encoding)"
        )


def _leave(response: urllib3.BaseHTTPResponse) -> None:
    """Keeps the connection for the next request when nothing of the body is left."""
    if getattr(response, "length_remaining", None) == 0:
        response.read()
        response.release_conn()
    else:
        response.close()  # cheaper than reading what nobody wants


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
