"""Identities made of texts and JSON values."""

import hashlib
import json
from collections.abc import Iterable

_SORTED = json.JSONEncoder(sort_keys=True)


def digest(*parts: object) -> str:
    """Return an identity made of texts and JSON values."""
    return digest_of(parts)


def digest_of(parts: Iterable[object]) -> str:
    """Return `digest` of parts that are made one after the other."""
    digest, between = hashlib.sha256(), b""
    for part in parts:
        text = part if isinstance(part, str) else _SORTED.encode(part)
        digest.update(between + text.encode("utf-8", "surrogateescape"))
        between = b"\0"
    return digest.hexdigest()[:32]
