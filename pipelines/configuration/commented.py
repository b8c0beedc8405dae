"""A configuration as YAML with a comment behind every key."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo

from reelweave.loader.settings import summary

Comment = Callable[[tuple[str, ...], FieldInfo], str]


def commented_yaml(config: BaseModel, head: Sequence[str], comment: Comment | None = None) -> str:
    """Return every key of a configuration with its value, as YAML that gives the same configuration.

    Args:
        config: resolved configuration.
        head: lines of a comment above all keys.
        comment: function from path and field of a key to its comment; by default its description.
    """
    lines = [f"# {line}".rstrip() for line in head]
    return "\n".join([*lines, *_lines(config, (), comment or field_description), ""])


def field_description(_: tuple[str, ...], field: FieldInfo) -> str:
    """Return the description of a field on one line."""
    return " ".join((field.description or "").split())


def _lines(config: BaseModel, path: tuple[str, ...], comment: Comment) -> Iterator[str]:
    indent, values = "  " * len(path), config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        inner, own_path = getattr(config, name), (*path, name)
        if isinstance(inner, BaseModel) and not isinstance(inner, RootModel):
            if not path:
                yield ""
            yield f"{indent}{name}:  # {summary(type(inner))}"
            yield from _lines(inner, own_path, comment)
        elif isinstance(inner, dict) and any(isinstance(entry, BaseModel) for entry in inner.values()):
            yield f"\n{indent}{name}:  # {field_description(own_path, field)}"
            for key, nested in inner.items():
                yield f"{indent}  {key}:  # {summary(type(nested))}"
                yield from _lines(nested, (*own_path, key), comment)
        else:
            yield f"{indent}{name}: {_flow(values[name])}  # {comment(own_path, field)}".rstrip(" #")


def _flow(value: Any) -> str:
    """Return a value in YAML's flow style, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    text = json.dumps(value)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")  # YAML takes 1e-05 for a word
    return text
