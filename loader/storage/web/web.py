"""Single GET requests: redirects, permissions, and checks of responses."""

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

import urllib3
from urllib3.util import make_headers

from reelweave.loader.errors import ObjectError, UsageError
from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.names import redact_uri
from reelweave.loader.storage.reach.permissions import inner_address, only_public, refusal
from reelweave.loader.storage.remote.retry import StatusError
from reelweave.loader.storage.web.connections import NotPublicError, pools, proxy_of

_CHUNK = 256 << 10
_REDIRECTS = (301, 302, 303, 307, 308)
_HOST = re.compile(r"[\w.-]+")


class WebError(ObjectError):
    """Failure to read one web address."""


class UnansweredError(WebError):
    """Failure of a server or of the network to give an answer (5xx, timeouts, broken connections), after all retries.

    It says nothing of the object.
    """


class SilentError(UnansweredError):
    """Timeout of a server; its other objects would time out, too."""


@dataclass(frozen=True)
class WebName:
    """Web object before any redirect.

    Attributes:
        name: name for messages, without secrets.
        address: address, which may contain user, password and a query.
        listed_in: see `reelweave.loader.storage.reach.permissions.refusal`.
    """

    name: str
    address: str
    listed_in: str = ""


@dataclass(frozen=True)
class WebResponse:
    """Response with an unread body.

    Attributes:
        url: final address after redirects, with its query, so unsuitable for messages.
        response: status and headers.
    """

    url: str
    response: urllib3.BaseHTTPResponse

    def header(self, name: str) -> str:
        """Return a header's value, "" if it is missing."""
        return self.response.headers.get(name, "")

    def chunks(self) -> Iterator[bytes]:
        """Yield the body in pieces.

        Raises:
            urllib3.exceptions.HTTPError: the connection breaks, or is too slow.
        """
        while chunk := self.response.read1(_CHUNK):
            yield chunk


def split_url(url: str) -> SplitResult:
    """Split a web address into its parts.

    Raises:
        UsageError: the text is no web address.
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
        raise UsageError(f"{redact_uri(url)} is no web address; write http(s)://host/folder/name")
    return parts


def _is_host(host: str) -> bool:
    """Return whether all URL parsers agree on the host."""
    if ":" in host:
        return ipaddress.ip_address(host).version == 6 and "%" not in host
    return _HOST.fullmatch(host) is not None


@contextmanager
def get(url: str, headers: dict[str, str], config: StorageConfig, named: WebName) -> Iterator[WebResponse]:
    """Send one GET and follow redirects to other web addresses, each checked by the permissions of the name.

    User and password of ``url`` are sent to its server only. The yielded response is usable: status 200, 206 or 416,
    and not compressed.

    Args:
        url: address of the object, or a previous redirect's target.
        headers: additional request headers.
        config: timeouts, redirects and permissions.
        named: name and origin of the object.

    Raises:
        FileNotFoundError: status 404 or 410.
        StatusError: another error status, possibly transient (`is_transient`).
        WebError: the response is unusable.
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
            target = _redirect_target(target, location, name)
        finally:
            _leave(response)
    raise WebError(f"{name}: more than storage.max_redirects = {config.max_redirects} redirects")


def _send(
    target: str, headers: dict[str, str], first: SplitResult, config: StorageConfig, named: WebName
) -> urllib3.BaseHTTPResponse:
    # A login goes to the server that it was given for, and to no other behind a redirect.
    parts = urlsplit(target)
    sent = {"Accept-Encoding": "identity", "User-Agent": "reelweave", **headers}
    if first.username is not None and _origin(parts) == _origin(first):
        login = f"{unquote(first.username)}:{unquote(first.password or '')}"
        sent |= make_headers(basic_auth=login)
    netloc = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))
    # Addresses that a list or a redirect names must not lead into the machine's own network.
    public = only_public(
        target, named.address, named.listed_in, config.allowed_prefixes, config.allow_private
    )
    host = parts.hostname or ""
    if public and (address := inner_address(host)):
        raise _not_public(named.name, host, address)
    # Redirects and retries are ours: each is looked at before it is followed.
    proxy = proxy_of(parts.scheme, netloc)
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


def _redirect_target(target: str, location: str, name: str) -> str:
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
        raise StatusError.of(status, response.headers)
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise WebError(
            f"{name}: the server compresses its answer although it was asked not to (Content-Encoding)"
        )


def _leave(response: urllib3.BaseHTTPResponse) -> None:
    """Keep the connection for the next request if the body was read to its end."""
    if getattr(response, "length_remaining", None) == 0:
        response.read()
        response.release_conn()
    else:
        response.close()  # cheaper than reading an unused body


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
