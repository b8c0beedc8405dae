"""Checks of object paths, and removal of secrets from names."""

import re
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

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


def redacted(uri: str) -> str:
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
    secret parameters become three asterisks.
    """
    text = re.sub(r"\S+", lambda word: _without_user(word[0]), text)
    return _PARAMETER.sub(
        lambda match: f"{match[1]}***" if _SECRET_PARAMETER.search(match[2]) else match[0], text
    )


def shown_name(text: str) -> str:
    """Return untrusted text for an error message: short, and without passwords."""
    text = redacted(text) if "://" in text else without_secrets(text)
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
_PARAMETER = re.compile(r"([?&;]([^\s=&;?'\"]+)=)[^\s&;'\"]+")

_SECRET_PARAMETER = re.compile(
    r"access.?key|api.?key|auth|credential|expires|jwt|key.?pair|passw|policy|secret|session|signature|token"
    r"|googleaccessid|^x-[a-z]+-|^(hmac|key|pw|pwd|s[a-z]|sig|sk[a-z]+|spr)$",
    re.IGNORECASE,
)
"""Names of credentials in signed links (S3, CloudFront, Google, Azure) and web services."""


def public_url(url: str) -> str:
    """Return a web address without secrets, stable when its link is signed anew.

    User, password, fragment and credentials of the query are removed; other parameters stay, since addresses may differ
    in the query alone. Text that is no web address is reduced further, see `redacted`.
    """
    try:
        parts = urlsplit(url)
        usable = parts.port is None or parts.port > 0
    except ValueError:
        usable = False
    if not usable:  # the password cannot be located
        return redacted(url)
    query = [
        pair for pair in parts.query.split("&") if pair and not _SECRET_PARAMETER.search(pair.split("=")[0])
    ]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "&".join(query), ""))
