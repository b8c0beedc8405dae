"""A command's configuration from its YAML file and its ``--set key=value`` options."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from loader.base.finite import finite
from loader.base.named_file import read_named
from loader.base.yaml_text import MAX_BYTES, MAX_DEPTH, Document, read_yaml
from loader.errors import UsageError
from loader.storage.names import shown_name, shown_value

_MOST_ERRORS = 10
_MOST_COMPARED = 80  # characters of a key

Config = TypeVar("Config", bound=BaseModel)


def resolve(model: type[Config], file: Path | None, overrides: Sequence[str]) -> Config:
    """The validated configuration: the model's defaults, then the file, then the overrides.

    Args:
        model: of the whole command.
        file: YAML, or None.
        overrides: "a.b=value" each, the value in YAML.

    Raises:
        UsageError: names every key that is unknown or has a wrong value, where it stands and what is allowed.
    """
    document = _read(file) if file else Document({}, None)
    values = document.values or {}
    set_keys: list[str] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise UsageError(
                f"--set {shown_name(override)}: write it as key=value, for example --set cut.crf=20"
            )
        if len(path) > MAX_DEPTH:
            raise UsageError(f"--set {shown_name(key.strip())}: a key has at most {MAX_DEPTH} parts")
        _put(values, path, read_yaml(text, f"--set {shown_name(key.strip())}").values)
        set_keys.append(key.strip())
    try:
        return finite(model.model_validate(values))
    except ValidationError as error:
        wrong = error.errors()
        sentences = [
            _sentence(model, dict(item), _where(item["loc"], set_keys, file, document))
            for item in wrong[:_MOST_ERRORS]
        ]
        more = [f"and {len(wrong) - _MOST_ERRORS} more"] if len(wrong) > _MOST_ERRORS else []
        raise UsageError("; ".join([*sentences, *more])) from error


def _read(file: Path) -> Document:
    document = read_yaml(read_named(file, MAX_BYTES, f"the configuration {file}"), str(file))
    if document.values is not None and not isinstance(document.values, dict):
        raise UsageError(f"{file} holds no mapping of keys to values")
    return document


def _where(key: Sequence[int | str], set_keys: Sequence[str], file: Path | None, document: Document) -> str:
    named = ".".join(map(str, key))
    if any(f"{named}.".startswith(f"{one}.") for one in set_keys):
        return "--set"
    line = document.line(key)
    return f"{file or 'the configuration'}{f', line {line}' if line else ''}"


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            inner = values[name] = {}
        values = inner
    values[path[-1]] = value


def _sentence(model: type[BaseModel], item: dict[str, Any], where: str) -> str:
    path = [str(part) for part in item["loc"]]
    key = shown_name(".".join(path))
    if item["type"] == "extra_forbidden":
        known = sorted(_fields(model, path[:-1]))
        close = difflib.get_close_matches(path[-1][:_MOST_COMPARED], known, n=1)
        nearest = f"did you mean {'.'.join([*path[:-1], close[0]])}? " if close else ""
        return f"{key} ({where}) is no known key; {nearest}known here: {', '.join(known)}"
    if item["type"] == "union_tag_not_found":
        tag = item["ctx"]["discriminator"].strip("'")
        return f"{key} ({where}) needs the key {tag}: set {key}.{tag} beside the others"
    message = str(item["msg"]).removeprefix("Value error, ")
    if isinstance(item["input"], dict):  # a rule about several keys, which its message names
        return f"{key} ({where}): {message}" if key else f"{where}: {message}"
    return f"{key} ({where}) cannot be {shown_value(item['input'])}: {message[:1].lower()}{message[1:]}"


def _fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for name in path:
        field = model.model_fields.get(name)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
