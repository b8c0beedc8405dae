"""Which names an object may have, and which names may be shown."""

import re
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

from loader.errors import UsageError

LEASE = ".reelweave-lease"
"""Says who writes to a place at present; no part of what lies there."""


@lru_cache(maxsize=4096)
def check_path(path: str) -> str:
    """Returns ``path`` when it names an object below the root of a storage.

    Backslashes count as separators too: what is harmless here may be unpacked on another system.

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
    """Returns ``prefix`` when every path that starts with it lies below the root; else as `check_path`."""
    if prefix:
        check_path(prefix + "x")  # a prefix may end anywhere in a name, or in a slash
    return prefix


def redacted(uri: str) -> str:
    """``uri`` without what may be secret in it: user and password, query and fragment."""
    # A secret key may hold slashes, so the last @ ends it wherever it stands.
    without = re.sub(r"^([^/]*//).*@", r"\1", re.split(r"[?#]", uri)[0], flags=re.DOTALL)
    if "@" not in uri:
        return without
    # What follows a colon and is no port is a password whose "#" or "?" was not encoded.
    return re.sub(r"^([^/]*//[^/:\[]*):(?!\d*(/|$)).*", r"\1", without, flags=re.DOTALL)


def without_secrets(text: str) -> str:
    """Any text to be shown or kept, in which no address has a user, a password or a signature.

    An address ends at a space. What stands in it before its last @ goes, host-like or not, since passwords may hold
    slashes. Values of secret parameters become three asterisks.
    """
    text = re.sub(r"\S+", lambda word: _without_user(word[0]), text)
    return _PARAMETER.sub(
        lambda found: f"{found[1]}***" if _SECRET_PARAMETER.search(found[2]) else found[0], text
    )


def shown_name(text: str) -> str:
    """A text of somebody else as an error may quote it: short, and without passwords."""
    text = redacted(text) if "://" in text else without_secrets(text)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def shown_value(value: object) -> str:
    """A value of a configuration as an error may show it: as Python writes it, short, and without passwords."""
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
"""Names that signed links (S3, CloudFront, Google, Azure) and web services give to what lets one in."""


def public_url(url: str) -> str:
    """A web address that may be stored and stays the same when its link is signed anew.

    User, password and fragment are left out, and of the query the parameters that let one in; what is left
    tells apart addresses that differ in the query alone. Of text that is no web address less is left: see `redacted`.
    """
    try:
        parts = urlsplit(url)
        usable = parts.port is None or parts.port > 0
    except ValueError:
        usable = False
    if not usable:  # nobody can tell which part of it is a password
        return redacted(url)
    query = [
        pair for pair in parts.query.split("&") if pair and not _SECRET_PARAMETER.search(pair.split("=")[0])
    ]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "&".join(query), ""))
