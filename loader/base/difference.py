"""First difference of two configurations, in words."""

from typing import Any


def first_difference(saved: Any, current: Any, key: str = "") -> str | None:
    """Return the first key whose value differs, with both values; None if the configurations are equal."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for name in sorted(saved.keys() | current.keys()):
            if found := first_difference(saved.get(name), current.get(name), f"{key}.{name}".lstrip(".")):
                return found
        return None
    return None if saved == current else f"{key} was {saved!r} and is {current!r} now"
