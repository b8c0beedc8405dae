"""JSON from a disk that anybody may have written to: each key once, numbers only, not too deep."""

import json
from typing import Any, NoReturn


def parse(data: bytes | str) -> Any:
    """Return the JSON value in some bytes.

    Raises:
        ValueError: it is no JSON, or says something that readers disagree on: a key twice, NaN, an infinite number.
    """
    try:
        return json.loads(data, object_pairs_hook=_object, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} comes twice")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
