"""Check that all numbers of a configuration or file are finite."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

_Model = TypeVar("_Model", bound=BaseModel)
_Key = tuple[int | str, ...]


def finite(model: _Model) -> _Model:
    """Return ``model`` if every number in it is finite.

    JSON and YAML can contain NaN and infinity, pydantic parses text such as ``"nan"``, and both pass most bounds.

    Raises:
        ValidationError: names each number that is not finite.
    """
    found = [
        InitErrorDetails(type=PydanticCustomError("finite", "a number must be finite"), loc=key, input=value)
        for key, value in _infinite(model, ())
    ]
    if found:
        raise ValidationError.from_exception_data(type(model).__name__, found)
    return model


def _infinite(value: Any, key: _Key) -> Iterator[tuple[_Key, float]]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield key, value
        return
    items: Any = ()
    if isinstance(value, BaseModel):
        # Only values that were set: an infinite default is intended.
        items = ((name, getattr(value, name)) for name in value.model_fields_set)
    elif isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for name, inner in items:
        yield from _infinite(inner, (*key, name))
