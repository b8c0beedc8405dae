"""A command's configuration from its YAML file and its ``--set key=value`` options."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from loader.base.named_file import read_named
from loader.base.yaml_text import MAX_BYTES, MAX_DEPTH, Document, read_yaml
from loader.errors import UsageError
from loader.settings import Settings
from loader.storage import StorageConfig, open_object
from loader.storage.names import redacted, shown_name, shown_value

DEFAULT, OVERRIDE = "default", "--set"

_MOST_ERRORS = 10
_MOST_COMPARED = 80  # characters of a key

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

Config = TypeVar("Config", bound=BaseModel)
File = str | Path | None
"""Path or URI of a YAML file."""


class _Reach(Settings):
    """Settings of storage in any configuration."""

    storage: StorageConfig = StorageConfig()


class Given(NamedTuple):
    """Values from a file and from options, before defaults.

    Attributes:
        values: nested by key.
        name: name of the file, for messages.
        document: content of the file, whose lines are known.
        set_keys: keys of the options.
    """

    values: dict[str, Any]
    name: str
    document: Document
    set_keys: tuple[str, ...]

    def validated(self, model: type[Config]) -> Config:
        """Return the configuration: the model's defaults with these values.

        Raises:
            UsageError: names every key that is unknown or has a wrong value, where it was given and what is allowed.
        """
        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            wrong = error.errors()
            sentences = [
                _sentence(model, dict(item), self._place(item["loc"])) for item in wrong[:_MOST_ERRORS]
            ]
            more = [f"and {len(wrong) - _MOST_ERRORS} more"] if len(wrong) > _MOST_ERRORS else []
            raise UsageError("; ".join([*sentences, *more])) from error

    def origin(self, key: Sequence[int | str]) -> str:
        """Return where a value was given: `OVERRIDE`, file and line, or `DEFAULT`."""
        value: Any = self.values
        for part in key:
            known = isinstance(value, dict) and part in value
            known = known or (isinstance(value, list) and isinstance(part, int) and part < len(value))
            if not known:
                return DEFAULT
            value = value[part]
        return self._place(key)

    def _place(self, key: Sequence[int | str]) -> str:
        named = ".".join(map(str, key))
        if any(f"{named}.".startswith(f"{one}.") for one in self.set_keys):
            return OVERRIDE
        line = self.document.line(key)
        if not line and any(
            one.startswith(f"{named}.") for one in self.set_keys
        ):  # of a section given by options
            return OVERRIDE
        return f"{self.name}{f', line {line}' if line else ''}"


def resolve(model: type[Config], file: File, overrides: Sequence[str]) -> Config:
    """Return the validated configuration: the model's defaults, then the file, then the overrides.

    Args:
        model: configuration model of the command.
        file: path or URI of a YAML file, or None.
        overrides: "a.b=value" each, the value in YAML.

    Raises:
        UsageError: names every key that is unknown or has a wrong value, where it was given and what is allowed.
    """
    return given(file, overrides).validated(model)


def given(file: File, overrides: Sequence[str]) -> Given:
    """Read a YAML file, if any, and options. Options of the section ``storage`` also say how to reach a remote file.

    Raises:
        UsageError: the file is unreadable, too large or no mapping, or an option is no "key=value".
    """
    if file is None:
        return given_text("{}", "the configuration", overrides)
    if not _URI.match(str(file)):
        text = read_named(Path(file), MAX_BYTES, f"the configuration {file}")
        return given_text(text, str(file), overrides)
    reach = [option for option in overrides if option.strip().startswith("storage.")]
    storage = given_text("{}", OVERRIDE, reach).validated(_Reach).storage
    found = given_text(_read_remote(str(file), storage), redacted(str(file)), overrides)
    _check_no_code(found)
    return found


def _check_no_code(found: Given) -> None:
    """Refuse code by path or module in a file that others may have written or replaced on its way.

    The section `stages` is one of a curation's configuration, and of the section `curate` of the demo's.
    """
    for above in ((), ("curate",)):
        section: Any = found.values
        for name in (*above, "stages"):
            section = section.get(name) if isinstance(section, dict) else None
        for name, one in section.items() if isinstance(section, dict) else ():
            key = (*above, "stages", str(name), "use")
            if isinstance(one, dict) and one.get("use") and (origin := found.origin(key)) != OVERRIDE:
                raise UsageError(
                    f"{shown_name('.'.join(key))} ({origin}): a configuration from an address may name installed"
                    " stages only; save it here and read it, or give that key with --set"
                )


def _read_remote(uri: str, config: StorageConfig) -> bytes:
    storage, name = open_object(uri, config)
    named = f"the configuration {redacted(uri)}"
    if storage.stat(name) is None:
        raise UsageError(f"{named} does not exist; give a YAML file")
    text = storage.read(name, 0, MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise UsageError(f"{named} is larger than {MAX_BYTES >> 10} KiB; give a smaller file")
    return text


def given_text(text: str | bytes, name: str, overrides: Sequence[str]) -> Given:
    """Read the text of a YAML file, and options.

    Raises:
        UsageError: the text is no mapping, or an option is no "key=value".
    """
    document = read_yaml(text, name)
    if document.values is not None and not isinstance(document.values, dict):
        raise UsageError(f"{name} holds no mapping of keys to values")
    values = document.values or {}
    set_keys: list[str] = []
    for override in overrides:
        key, equals, text_of_value = override.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise UsageError(
                f"--set {shown_name(override)}: write it as key=value, for example --set cut.crf=20"
            )
        if len(path) > MAX_DEPTH:
            raise UsageError(f"--set {shown_name(key.strip())}: a key has at most {MAX_DEPTH} parts")
        _put(values, path, read_yaml(text_of_value, f"--set {shown_name(key.strip())}").values)
        set_keys.append(key.strip())
    return Given(values, name, document, tuple(set_keys))


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
