"""Permissions: targets that a name may lead to, given the place that contains the name.

Permissions apply to the URI of the opened object (`Storage.uri`), so spelling makes no difference. An empty
``listed_in`` stands for a name given by the user.
"""

import functools
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from reelweave.loader.storage.reach.addresses import is_public, written_address

_WEB = ("http", "https")
_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"(https?|s3|file)://", re.IGNORECASE)


@dataclass(frozen=True)
class ParsedUri:
    """Parsed URI for permission checks.

    Attributes:
        scheme: "file" for this machine, "s3", "http" or "https".
        host: lower-case host, or bucket; "" for this machine, and for every host in a prefix.
        port: port of a web server; 0 for other schemes.
        path: parts between slashes, decoded for the web.
    """

    scheme: str
    host: str
    port: int
    path: tuple[str, ...]

    @property
    def kind(self) -> Literal["file", "s3", "web"]:
        """Kind of storage that serves the URI."""
        if self.scheme in _WEB:
            return "web"
        return "s3" if self.scheme == "s3" else "file"

    @property
    def server(self) -> tuple[str, int]:
        """Host and port of the server."""
        return self.host, self.port


@functools.lru_cache(256)  # each name of a list is compared with the list's own
def spot(uri: str) -> ParsedUri:
    """Parse the URI of an object; text without a scheme is a local path.

    Raises:
        ValueError: the port or the host is malformed.
    """
    match = _SCHEME.match(uri)
    scheme = match[1].lower() if match else "file"
    if scheme in _WEB:
        parts = urlsplit(uri)
        host = (parts.hostname or "").rstrip(".")
        return ParsedUri(scheme, host, parts.port or _PORTS[scheme], _parts(unquote(parts.path)))
    rest = uri[match.end() :] if match else uri
    if scheme == "s3":
        bucket, _, key = rest.partition("/")
        return ParsedUri(scheme, bucket, 0, _parts(key))
    return ParsedUri("file", "", 0, _parts(unquote(rest) if match else rest))


def refusal(target: str, listed_in: str, allowed: tuple[str, ...]) -> str | None:
    """Return the reason why a list may not name an object, or None if it may.

    Args:
        target: URI of the object, as its storage spells it.
        listed_in: URI of the list, manifest or blend that names it; "" if the user did.
        allowed: ``storage.allowed_prefixes``.
    """
    if not listed_in:
        return None
    source = spot(listed_in)
    if source.kind == "file":  # local lists count as the user's own words
        return None
    named = spot(target)
    if source.kind == named.kind and source.host == named.host:
        return None
    if any(_below(named, spot(prefix)) for prefix in allowed):
        return None
    whose = f"the bucket {source.host}" if source.kind == "s3" else source.host
    what, prefix = {
        "file": ("a file of this machine", "/FOLDER/"),
        "s3": (f"an object of the bucket {named.host}", f"s3://{named.host}/"),
        "web": (f"an address of {named.host}", f"{named.scheme}://{named.host}/"),
    }[named.kind]
    return (
        f"is {what}; what is named on {whose} has to lie there, unless storage.allowed_prefixes holds the place,"
        f" such as {prefix}"
    )


def only_public(
    target: str, address: str, listed_in: str, allowed: tuple[str, ...], allow_private: bool
) -> bool:
    """Return whether a web address may only be fetched from public network addresses.

    Exceptions are servers that the user wrote down. These are the server of a typed address, the server of a
    list whose host is an IP address, and IP addresses in ``storage.allowed_prefixes``.

    Args:
        target: address to fetch, such as a redirect's target.
        address: requested address before any redirect.
        listed_in: see `refusal`.
        allowed: ``storage.allowed_prefixes``.
        allow_private: ``storage.allow_private``.
    """
    if allow_private:
        return False
    target_spot = spot(target)
    if not listed_in:
        return target_spot.server != spot(address).server
    # Host names may resolve differently at every lookup; IP addresses are constant.
    written = [spot(prefix) for prefix in allowed]
    source = spot(listed_in)
    if source.kind == "web" and written_address(source.host) and source.server == target_spot.server:
        return False
    return not any(
        written_address(listed.host) and _below(target_spot, listed)
        for listed in written
        if listed.kind == "web"
    )


def inner_address(host: str) -> str | None:
    """Return the private address that a host name itself spells, or None."""
    address = written_address(host)
    return None if address is None or is_public(address) else address


def check_prefix_uri(prefix: str) -> str:
    """Return a valid entry of ``storage.allowed_prefixes``.

    Raises:
        ValueError: the entry is malformed.
    """
    try:
        prefix_spot = spot(prefix)
    except ValueError:
        prefix_spot = None
    scheme = _SCHEME.match(prefix)
    if prefix_spot is not None and prefix_spot.kind == "file":
        usable = prefix.startswith(("/", "file:///"))
    else:  # a prefix without a host means every host, and has no folder
        usable = (
            scheme is not None and prefix_spot is not None and bool(prefix_spot.host or not prefix_spot.path)
        )
    if (
        prefix_spot is None
        or not usable
        or not {".", ".."}.isdisjoint(prefix_spot.path)
        or "@" in prefix
        or "?" in prefix
    ):
        raise ValueError(
            "write http(s)://host/folder/, s3://bucket/folder/ or /folder/, without password and query"
        )
    return prefix


def _below(named: ParsedUri, prefix: ParsedUri) -> bool:
    """Return whether a name lies at or below a prefix, part by part; names with ".." never do."""
    if named.scheme != prefix.scheme or (prefix.host and named.server != prefix.server):
        return False
    climbs = any(part in (".", "..") or "\\" in part or "\0" in part for part in named.path)
    return named.path[: len(prefix.path)] == prefix.path and not (prefix.path and climbs)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)
