"""Base class of the sections of a configuration, and differences of two configurations."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel


class Settings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Frozen section of a configuration: no unknown keys, finite numbers; ``help()`` of it describes every key.

    Attributes:
        READ_WITH: by key, another key of the section and the values of it with which the key is read.
    """

    READ_WITH: ClassVar[Mapping[str, tuple[str, tuple[object, ...]]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        purpose = inspect.cleandoc(cls.__doc__ or "")
        keys = "\n".join(
            f"    {name}: {' '.join(field.description.split())}{_default(field.is_required(), field.default)}"
            for name, field in cls.model_fields.items()
            if field.description
        )
        if keys:
            cls.__doc__ = f"{purpose}\n\nKeys:\n{keys}"
            # A JSON schema has the keys below the section already.
            cls.model_config["json_schema_extra"] = {"description": purpose}


def summary(section: type[BaseModel]) -> str:
    """Return what a section is for, without its keys, in one line."""
    return " ".join((section.__doc__ or "").partition("\n\nKeys:\n")[0].split())


def unread_keys(section: BaseModel, name: str = "") -> Iterator[str]:
    """Yield a line for each key that is set to another value than its default, and that another choice leaves unread.

    Args:
        section: configuration; its own sections are looked at, too.
        name: dotted name of the section.
    """
    prefix = f"{name}." if name else ""
    for key, (choice, values) in (section.READ_WITH if isinstance(section, Settings) else {}).items():
        value, chosen = getattr(section, key), getattr(section, choice)
        if chosen not in values and value != type(section).model_fields[key].default:
            owners = " or ".join(map(str, values))
            yield f"{prefix}{key}={value} is not read: it is for {choice} {owners}, and {choice} is {chosen}"
    for key in type(section).model_fields:
        if isinstance(part := getattr(section, key), BaseModel):
            yield from unread_keys(part, f"{prefix}{key}")


def differences(saved: Any, current: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield every key whose value differs between two configurations, and both values; a missing one is None."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for name in sorted(saved.keys() | current.keys()):
            yield from differences(saved.get(name), current.get(name), f"{key}.{name}".lstrip("."))
    elif saved != current:
        yield key, saved, current


def first_difference(saved: Any, current: Any) -> str | None:
    """Return the first difference in words; None when equal."""
    for key, before, now in differences(saved, current):
        return f"{key} was {before!r} and is {now!r} now"
    return None


def _default(is_required: bool, default: object) -> str:
    if is_required:
        return " (required)"
    return f" (default: {default})" if isinstance(default, bool | int | float | str) else ""
