"""Keys of a configuration, read from the fields of its models: paths, defaults, choices, limits, units."""

import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_UNITS = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_px": "pixels",
    "_kbps": "kilobits per second",
    "_dbfs": "decibels below full scale",
    "_mib": "MiB (2^20 bytes)",
    "_gib": "GiB (2^30 bytes)",
    "_mb": "megabytes (10^6 bytes)",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_frames": "frames",
    "_steps": "optimizer steps",
    "_fps": "frames per second",
    "_share": "share, 0 to 1",
}
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


class Key(NamedTuple):
    """Key of a configuration, with its field.

    Attributes:
        path: path from the root, such as "cut.crf".
        field: field of its model.
        only: the tag that chooses its model among alternatives, such as "`kind: dit`"; "" without alternatives.
    """

    path: str
    field: FieldInfo
    only: str

    @property
    def section(self) -> bool:
        """True for a section, which has other keys."""
        return bool(models_of(self.field.annotation))


def keys_of(model: type[BaseModel], path: str = "", only: str = "") -> Iterator[Key]:
    """Yield every key of a model in the order of its fields, sections before their keys."""
    for name, field in model.model_fields.items():
        if is_tag(field) and path:
            continue
        key_path = f"{path}.{name}" if path else name
        yield Key(key_path, field, only)
        key_path = inside(key_path, field)
        sections = models_of(field.annotation)
        for section in sections:
            yield from keys_of(section, key_path, tag_of(section) if len(sections) > 1 else only)


def inside(path: str, field: FieldInfo) -> str:
    """Return the path of what a section holds: its own, or that of any name where it maps names to sections."""
    return f"{path}.NAME" if get_origin(field.annotation) is dict else path


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a value may be; none if it is no section."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for option in get_args(annotation) for model in models_of(option)]


def tag_of(model: type[BaseModel]) -> str:
    """Return the key and value that choose this model among its alternatives."""
    return next(f"`{name}: {field.default}`" for name, field in model.model_fields.items() if is_tag(field))


def is_tag(field: FieldInfo) -> bool:
    """Return whether a field has one possible value, which chooses its model."""
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


def choices_of(field: FieldInfo) -> list[Any]:
    """Return the values that a field may have, if they are listed."""
    alone = get_origin(field.annotation) is Literal
    options = (
        [field.annotation]
        if alone
        else [option for option in get_args(field.annotation) if option is not NoneType]
    )
    if not options or any(get_origin(option) is not Literal for option in options):
        return []
    return [literal for option in options for literal in get_args(option)]


def unit_of(path: str) -> str:
    """Return the unit that the name of a key ends with, "" if it names none."""
    name = f"_{path.rsplit('.', 1)[-1]}"
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def kind_of(field: FieldInfo) -> str:
    """Return type and limits of a value in words, such as "integer, at least 1, or null"."""
    limits = [
        f"{sign} {getattr(constraint, name):g}"
        for constraint in field.metadata
        for name, sign in _LIMITS.items()
        if getattr(constraint, name, None) is not None
    ]
    kind, *null = _kind(field.annotation).rsplit(" or null", 1)
    return ", ".join([kind, *limits, *("or null" for _ in null)])


def _kind(annotation: Any) -> str:
    named = {bool: "true or false", int: "integer", float: "number", str: "text", NoneType: "null"}
    if annotation in named:
        return named[annotation]
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(options[0])
    if origin in (Union, UnionType):
        return " or ".join(_kind(option) for option in sorted(options, key=lambda kind: kind is NoneType))
    if origin in (tuple, list):
        return f"list of {_kind(options[0])}" if options else "list"
    if origin is Literal:
        return "one of " + ", ".join(json.dumps(option) for option in options)
    if models_of(annotation):
        return "section"
    return "mapping" if origin is dict else "text"
