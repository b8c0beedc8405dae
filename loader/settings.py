"""Base class of the sections of a configuration, and differences of two configurations."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

_NO_NUMBER = PydanticCustomError(
    "boolean_for_number", "a boolean (true, false, yes, no, on, off) is no number; write a number"
)


class Except(tuple[object, ...]):
    """Every value but some, of a key with which another is read."""

    def __new__(cls, *values: object) -> "Except":
        return super().__new__(cls, values)

    def __contains__(self, value: object) -> bool:
        return not super().__contains__(value)

    def __str__(self) -> str:
        return "other than " + " and ".join(map(str, self))


SET = Except(None)
"""Every value of a key that is empty by default."""


class Settings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Frozen section of a configuration: no unknown keys, finite numbers; ``help()`` of it describes every key.

    Attributes:
        READ_WITH: by key, another key of the section and the values of it with which the key is read. Keys of sections
            within have dots; the key of a section stands for all of its own.
    """

    READ_WITH: ClassVar[Mapping[str, tuple[str, tuple[object, ...]]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_numbers(cls, values: Any) -> Any:
        """Refuse booleans for numbers, which pydantic takes for 0 and 1."""
        if not isinstance(values, dict):
            return values
        wrong = [
            InitErrorDetails(type=_NO_NUMBER, loc=(key,), input=value)
            for key, value in values.items()
            if _holds_boolean(value) and cls._is_number(key)
        ]
        if wrong:  # with the key as its place, which a ValueError would not have
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return values

    @classmethod
    def _is_number(cls, key: str) -> bool:
        """Return whether a key is of numbers, and of no booleans; where further keys are allowed, they are."""
        field = cls.model_fields.get(key)
        if field is None:
            return cls.model_config.get("extra") == "allow"
        types = set(_types(field.annotation))
        return bool({int, float} & types) and not {bool, Any, object} & types

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
    for key, (choice, values) in getattr(section, "READ_WITH", {}).items():
        *path, last = key.split(".")
        owner = _get(section, path)
        chosen = _get(section, choice.split("."))
        if owner is None or chosen in values:
            continue
        default = _plain(type(owner).model_fields[last].default)
        for leaf, _, value in differences(default, _plain(getattr(owner, last)), f"{prefix}{key}"):
            yield f"{leaf}={value} is not read: it is for {choice}{_describe_choice(choice, values, chosen)}"
    for key in type(section).model_fields:
        if isinstance(part := getattr(section, key), BaseModel):
            yield from unread_keys(part, f"{prefix}{key}")


def _describe_choice(choice: str, values: tuple[object, ...], chosen: object) -> str:
    """Return in words the values of a key with which another is read, and its value now."""
    if values == SET:
        return ", which is not set"
    owners = str(values) if isinstance(values, Except) else " or ".join(map(str, values))
    return f" {owners}, and {choice} is {chosen}"


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


def _holds_boolean(value: Any) -> bool:
    """Return whether a value is a boolean, or has one in a list or under a key."""
    if isinstance(value, list | tuple):
        return any(map(_holds_boolean, value))
    return isinstance(value, bool) or (isinstance(value, dict) and any(map(_holds_boolean, value.values())))


def _get(section: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of keys; None below a section that is none."""
    for key in path:
        section = getattr(section, key, None)
    return section


def _plain(value: object) -> object:
    return value.model_dump() if isinstance(value, BaseModel) else value


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types within an annotation."""
    annotation = getattr(annotation, "__value__", annotation)  # of an alias
    if get_origin(annotation) is Literal:
        yield from map(type, get_args(annotation))
        return
    yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)
