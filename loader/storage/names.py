"""Checks of object paths, and removal of secrets from names."""

import hashlib
import os
import re
from collections.abc import Set
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from reelweave.loader.errors import UsageError

LEASE = ".reelweave-lease"
"""Path of the lease, which is hidden from listings."""


@lru_cache(maxsize=4096)
def check_path(path: str) -> str:
    """Return ``path`` if it names an object below the root of a storage.

    Backslashes count as separators, too: a harmless name here may be unpacked on another system.

    Raises:
        UsageError: the path is empty, absolute, names a folder, or could leave the root.
    """
    parts = re.split(r"[/\\]", path)
    if not parts[0] or not parts[-1] or "\0" in path or not {".", ".."}.isdisjoint(parts):
        raise UsageError(
            f"{path!r} is no path of an object; write folder/name, no '..' and no slash at either end"
        )
    return path


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if every path that starts with it lies below the root; for errors see `check_path`."""
    if prefix:
        check_path(prefix + "x")  # prefixes may end within a name, or in a slash
    return prefix


def is_utf8(text: str) -> bool:
    """Return True if a text can be written as UTF-8; names of files may hold other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def local_name(path: str) -> str:
    """Return an absolute path, as a ``file://`` URI where it is not UTF-8: tables, JSON and pages can hold that."""
    return path if is_utf8(path) else f"file://{quote(os.fsencode(path))}"


def redact_uri(uri: str) -> str:
    """Return ``uri`` without parts that may be secret: user, password, query and fragment."""
    # Secret keys may contain slashes, so the last @ ends the user part wherever it stands.
    without = re.sub(r"^([^/]*//).*@", r"\1", re.split(r"[?#]", uri)[0], flags=re.DOTALL)
    if "@" not in uri:
        return without
    # Anything but a port behind a colon is a password with an unencoded "#" or "?".
    return re.sub(r"^([^/]*//[^/:\[]*):(?!\d*(/|$)).*", r"\1", without, flags=re.DOTALL)


def without_secrets(text: str) -> str:
    """Return text for messages and logs, without users, passwords and signatures in its addresses.

    An address ends at a space. Everything before its last @ is removed, since passwords may contain slashes. Values of
    secret parameters become three asterisks; digests of them stay (`public_url`).
    """
    text = re.sub(r"\S+", lambda word: _without_user(word[0]), text)
    return _PARAMETER.sub(
        lambda match: f"{match[1]}***" if _SECRET_PARAMETER.search(match[2]) else match[0], text
    )


def without_secrets_in(value: Any) -> Any:
    """Return the value of a configuration with `without_secrets` applied to every address in it."""
    if isinstance(value, dict):
        return {name: without_secrets_in(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets_in(inner) for inner in value]
    return without_secrets(value) if isinstance(value, str) and "://" in value else value


def shown_name(text: str) -> str:
    """Return untrusted text for an error message: short, and without passwords."""
    text = redact_uri(text) if "://" in text else without_secrets(text)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def shown_value(value: object) -> str:
    """Return a configuration value for an error message: its Python form, short, and without passwords."""
    if isinstance(value, str):
        return repr(shown_name(value))
    text = without_secrets(repr(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _without_user(word: str) -> str:
    scheme, colon, rest = word.partition(":/")
    _, at, host = rest.rpartition("@")
    return f"{scheme}{colon}{'/' * (len(rest) - len(rest.lstrip('/')))}***@{host}" if at else word


_MOST_SHOWN = 80
_PARAMETER = re.compile(r"([?&;]([^\s=&;?'\"]+)=)(?!sha256-[0-9a-f]{16}(?![\w%+/=-]))[^\s&;'\"]+")

_SECRET_PARAMETER = re.compile(
    r"access.?key|api.?key|auth|credential|expires|jwt|key.?pair|passw|policy|secret|session|signature|token"
    r"|googleaccessid|^x-[a-z]+-|^(hmac|key|pw|pwd|s[a-z]|sig|sk[a-z]+|spr)$",
    re.IGNORECASE,
)
"""Names of credentials in signed links (S3, CloudFront, Google, Azure) and web services. Others have them, too."""


def public_url(url: str) -> str:
    """Return a web address without secrets: the name of what lies there.

    User, password and fragment are removed, and of the query passwords, keys of an API and whole schemes of signing, so
    a link that is signed anew keeps its name. The value of any other parameter that may be secret becomes a digest, so
    that addresses that differ in it keep different names. Other parameters stay. Text that is no web address is reduced
    further, see `redact_uri`.
    """
    try:
        parts = urlsplit(url)
        usable = parts.port is None or parts.port > 0
    except ValueError:
        usable = False
    if not usable:  # the password cannot be located
        return redact_uri(url)
    host = parts.netloc.rpartition("@")[2]
    query = _public_query(parts.query, f"{host}{parts.path}", names_file=_FILE.search(parts.path) is not None)
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def undigested_name(name: str) -> str:
    """Return the name of `public_url` as versions before digests gave it: without the parameters that have one."""
    address, _, query = name.partition("?")
    pairs = query.split("&")
    kept = [pair for pair in pairs if not _DIGESTED.fullmatch(pair.rpartition("=")[2])]
    return name if len(kept) == len(pairs) else f"{address}?{'&'.join(kept)}".removesuffix("?")


def _public_query(query: str, path: str, names_file: bool) -> str:
    """Return a query without secrets.

    Args:
        query: The query of an address.
        path: Host and path of the address.
        names_file: Whether the path names a file, so that a token alone names none.
    """
    pairs = [pair for pair in query.split("&") if pair]
    values = {_parameter(pair): pair.partition("=")[2] for pair in pairs}
    dropped = _signing(values.keys())
    if names_file and (lone := {name for name, value in values.items() if _is_lone_signature(name, value)}):
        dropped |= {*lone, "expires"}
    kept = [pair for pair in pairs if not (_parameter(pair) in dropped or _PASSWORD.match(_parameter(pair)))]
    return "&".join(
        _digest_parameter(pair, path) if _SECRET_PARAMETER.search(_parameter(pair)) else pair for pair in kept
    )


def _parameter(pair: str) -> str:
    return unquote(pair.partition("=")[0]).lower()


def _signing(names: Set[str]) -> set[str]:
    """Return the parameters of the schemes of signing that are whole among the parameters of a query."""
    signed: set[str] = set()
    for name in names:
        if match := re.fullmatch(r"(x-[a-z]+-)signature", name):  # versions 4 of S3, Google and others
            signed |= {other for other in names if other.startswith(match[1])}
    if {"signature", "expires"} <= names and (ids := names & _KEY_IDS):  # version 2
        signed |= {"signature", "expires", *ids, "security-token"}
    if {"signature", "key-pair-id"} <= names and names & {"policy", "expires"}:  # CloudFront
        signed |= {"signature", "key-pair-id", "policy", "expires"}
    if {"sig", "sv"} <= names and names & {"se", "si"}:  # shared access of Azure
        signed |= {name for name in names if _OF_AZURE.fullmatch(name)}
    return signed


def _is_lone_signature(name: str, value: str) -> bool:
    value = unquote(value)
    return name in ("sig", "signature", "hmac") or (
        _TOKEN.fullmatch(name) is not None
        and (_HEX.fullmatch(value) is not None or all(re.search(kind, value) for kind in _RANDOM))
    )


def _digest_parameter(pair: str, path: str) -> str:
    """Return a parameter with a digest of its value; of a parameter without one its name may be the secret."""
    name, equals, value = pair.partition("=")
    if (equals and not value) or _DIGESTED.fullmatch(value if equals else name):
        return pair
    # The path is part of it: a list of common passwords cannot be compared with many names at once.
    digest = hashlib.sha256(f"{path}\0{pair}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"{name}{equals}{_DIGEST}{digest[:16]}" if equals else f"{_DIGEST}{digest[:16]}"


_FILE = re.compile(r"[^/]\.(?!(php\d?|aspx?|ashx|jspx?|cgi|pl|py|do|action|html?)$)\w{2,5}$", re.IGNORECASE)
"""Ends of paths that name a file, and no program that serves many."""
_DIGEST = "sha256-"
_DIGESTED = re.compile(r"sha256-[0-9a-f]{16}")
_KEY_IDS = {"awsaccesskeyid", "googleaccessid", "ossaccesskeyid", "accesskeyid"}
_OF_AZURE = re.compile(r"s[a-z]|sig|sk(oid|tid|t|e|s|v)|spr")
_PASSWORD = re.compile(
    r"(pw|pwd|passwd|password|passphrase|(api|access|client|app)[-_]?(key|secret)|secret)$"
)
"""Names of parameters that tell users apart, never films."""
_TOKEN = re.compile(r"((access|auth|security|session|download|id)[-_]?)?token|auth|jwt|authorization")
_HEX = re.compile(r"[0-9a-fA-F-]{32,}")
_RANDOM = (r"^[A-Za-z0-9+/=_.~-]{20,}$", "[a-z]", "[A-Z]", "[0-9]")
