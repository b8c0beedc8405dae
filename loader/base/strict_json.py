"""Strict JSON parsing for untrusted files: unique keys, finite numbers, bounded depth."""

import hashlib
import json
from typing import Any, NoReturn

SEAL = "sha256"
"""Key of a JSON object for the `digest` of all its other keys."""


def parse(data: bytes | str) -> Any:
    """Parse JSON without ambiguities.

    Raises:
        ValueError: the text is no JSON, or ambiguous: a repeated key, NaN, or an infinite number.
    """
    try:
        return json.loads(data, object_pairs_hook=_object, parse_constant=_refuse)
    except UnicodeDecodeError:  # of an encoding that was guessed, whose name would mislead
        raise ValueError("it is no text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def digest(body: dict[str, Any]) -> str:
    """Return the checksum of a JSON object, independent of the order of its keys."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def unseal(body: dict[str, Any]) -> bool:
    """Remove and verify an object's checksum; return False if it has none.

    Raises:
        ValueError: the checksum does not match.
    """
    seal = body.pop(SEAL, None)
    if seal is not None and seal != digest(body):
        raise ValueError("its own checksum does not match")
    return seal is not None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} comes twice")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
