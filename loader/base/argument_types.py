"""Checks of arguments where people call the library, so that a wrong type is refused in words."""

import operator
import os
from typing import Any

from reelweave.loader.errors import WrongTypeError


def check_type(value: object, expected: type | tuple[type, ...], name: str, remedy: str) -> None:
    """Check the type of an argument.

    Args:
        value: value of the argument.
        expected: type or types that are accepted.
        name: name of the argument.
        remedy: what to give instead.

    Raises:
        WrongTypeError: the value has another type.
    """
    if not isinstance(value, expected):
        raise WrongTypeError(_sentence(value, name, remedy))


def check_protocol(value: object, method: str, name: str, remedy: str) -> None:
    """Check that an argument has a method of the protocol that is expected.

    Raises:
        WrongTypeError: it has none.
    """
    if isinstance(value, type) or not hasattr(value, method):
        raise WrongTypeError(_sentence(value, name, remedy))


def whole_number(value: Any, name: str, remedy: str) -> int:
    """Return an integer, of NumPy or PyTorch too, as an int.

    Raises:
        WrongTypeError: the value is no integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise WrongTypeError(_sentence(value, name, remedy)) from None


def path_text(path: Any, name: str) -> str:
    """Return a path or URI as text.

    Raises:
        WrongTypeError: the value is neither text nor a path.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    check_type(text, str, name, "give a path or URI as text, or a pathlib.Path")
    return str(text)


def _sentence(value: object, name: str, remedy: str) -> str:
    """Return the refusal without the value itself, which may hold a password."""
    return f"{name} is {'None' if value is None else f'of type {type(value).__name__}'}; {remedy}"
