"""Permissions: what a name may lead to, given the place where it was found.

A name is judged after it has become an object of a storage, by the URI of that object (`Storage.uri`), so that how the
name was spelled decides nothing. An empty ``listed_in`` stands for the person who typed the name.
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from loader.storage.addresses import is_public, written_address

_WEB = ("http", "https")
_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"(https?|s3|file)://", re.IGNORECASE)


@dataclass(frozen=True)
class ParsedUri:
    """A URI as permissions see it.

    Attributes:
        scheme: "file" for this machine, "s3", "http" or "https".
        host: lower-case host, or bucket; "" for this machine, and in a prefix that means every host.
        port: of a web server, 0 elsewhere.
        path: parts between slashes, decoded for the web.
    """

    scheme: str
    host: str
    port: int
    path: tuple[str, ...]

    @property
    def kind(self) -> Literal["file", "s3", "web"]:
        """Kind of storage."""
        if self.scheme in _WEB:
            return "web"
        return "s3" if self.scheme == "s3" else "file"

    @property
    def server(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port


def spot(uri: str) -> ParsedUri:
    """Take the URI of an object apart; what has no scheme is a path of this machine.

    Raises:
        ValueError: the port or the host is malformed.
    """
    found = _SCHEME.match(uri)
    scheme = found[1].lower() if found else "file"
    if scheme in _WEB:
        parts = urlsplit(uri)
        host = (parts.hostname or "").rstrip(".")
        return ParsedUri(scheme, host, parts.port or _PORTS[scheme], _parts(unquote(parts.path)))
    rest = uri[found.end() :] if found else uri
    if scheme == "s3":
        bucket, _, key = rest.partition("/")
        return ParsedUri(scheme, bucket, 0, _parts(key))
    return ParsedUri("file", "", 0, _parts(unquote(rest) if found else rest))


def refusal(target: str, listed_in: str, allowed: tuple[str, ...]) -> str | None:
    """Return why a list may not name an object, or None where it may.

    Args:
        target: URI of the object, as its storage spells it.
        listed_in: URI of the list, manifest or blend that names it; "" for a person.
        allowed: ``storage.allowed_prefixes``.
    """
    if not listed_in:
        return None
    named, source = spot(target), spot(listed_in)
    if source.kind == "file":  # a list on this machine speaks for the person who keeps it
        return None
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
    """Return whether a web address may be fetched from public addresses of the network alone.

    Others are for servers that the person wrote down: the one whose address was typed, the one of a list whose host
    is written as an IP address, and hosts written as IP addresses in ``storage.allowed_prefixes``.

    Args:
        target: what is fetched, such as what a redirect leads to.
        address: what was asked for before any redirect.
        listed_in: as of `refusal`.
        allowed: ``storage.allowed_prefixes``.
        allow_private: ``storage.allow_private``.
    """
    if allow_private:
        return False
    asked = spot(target)
    if not listed_in:
        return asked.server != spot(address).server
    # Names of somebody else may mean another address at every look-up; a written address stays what it is.
    written = [spot(prefix) for prefix in allowed]
    source = spot(listed_in)
    if source.kind == "web" and written_address(source.host) and source.server == asked.server:
        return False
    return not any(written_address(one.host) and _below(asked, one) for one in written if one.kind == "web")


def inner_address(host: str) -> str | None:
    """Return the address that is not public and that a host's name itself spells, or None."""
    address = written_address(host)
    return None if address is None or is_public(address) else address


def check_prefix_uri(prefix: str) -> str:
    """Return one entry of ``storage.allowed_prefixes``.

    Raises:
        ValueError: it is none.
    """
    try:
        found = spot(prefix)
    except ValueError:
        found = None
    scheme = _SCHEME.match(prefix)
    if found is not None and found.kind == "file":
        usable = prefix.startswith(("/", "file:///"))
    else:  # without a host a prefix means every host, and no folder
        usable = scheme is not None and found is not None and bool(found.host or not found.path)
    if (
        found is None
        or not usable
        or not {".", ".."}.isdisjoint(found.path)
        or "@" in prefix
        or "?" in prefix
    ):
        raise ValueError(
            "write http(s)://host/folder/, s3://bucket/folder/ or /folder/, without password and query"
        )
    return prefix


def _below(named: ParsedUri, prefix: ParsedUri) -> bool:
    """Return whether a name lies at or below a prefix, part by part; a name that climbs lies nowhere."""
    if named.scheme != prefix.scheme or (prefix.host and named.server != prefix.server):
        return False
    climbs = any(part in (".", "..") or "\\" in part or "\0" in part for part in named.path)
    return named.path[: len(prefix.path)] == prefix.path and not (prefix.path and climbs)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)
