"""A command's configuration from its YAML file and its ``--set key=value`` options."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from loader.errors import UsageError

MAX_CONFIG_BYTES = 1 << 20

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
    values = _read(file) if file else {}
    places: dict[str, str] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {override}: write it as key=value, for example --set cut.crf=20")
        _put(values, key.strip().split("."), _parse(override, text))
        places[key.strip()] = "--set"
    try:
        return model.model_validate(values)
    except ValidationError as error:
        default = str(file) if file else "the configuration"
        sentences = [_sentence(model, dict(item), places, default) for item in error.errors()]
        raise UsageError("; ".join(sentences)) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise UsageError(f"{file} is larger than {MAX_CONFIG_BYTES} bytes; that is no configuration")
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read configuration {file}: {getattr(error, 'strerror', None) or error}"
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise UsageError(f"{file}{where} is no YAML: {problem}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{file} holds no mapping of keys to values")
    return values


def _parse(override: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {override}: the value is no YAML") from error


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            inner = values[name] = {}
        values = inner
    values[path[-1]] = value


def _sentence(model: type[BaseModel], item: dict[str, Any], places: dict[str, str], default: str) -> str:
    path = [str(part) for part in item["loc"]]
    key = ".".join(path)
    where = next((place for set_key, place in places.items() if f"{key}.".startswith(f"{set_key}.")), default)
    if item["type"] == "extra_forbidden":
        known = sorted(_fields(model, path[:-1]))
        close = difflib.get_close_matches(path[-1], known, n=1)
        nearest = f"did you mean {'.'.join([*path[:-1], close[0]])}? " if close else ""
        return f"{key} ({where}) is no known key; {nearest}known here: {', '.join(known)}"
    if item["type"] == "union_tag_not_found":
        tag = item["ctx"]["discriminator"].strip("'")
        return f"{key} ({where}) needs the key {tag}: set {key}.{tag} beside the others"
    message = str(item["msg"]).removeprefix("Value error, ")
    if isinstance(item["input"], dict):  # a rule about several keys, which its message names
        return f"{key} ({where}): {message}" if key else f"{where}: {message}"
    return f"{key} ({where}) cannot be {item['input']!r}: {message[:1].lower()}{message[1:]}"


def _fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for name in path:
        field = model.model_fields.get(name)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
