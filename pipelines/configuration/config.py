"""A command's configuration from its YAML file and its ``--set key=value`` options."""

import copy
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.yaml_text import MAX_BYTES, MAX_DEPTH, Document, read_yaml
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings
from reelweave.loader.storage import StorageConfig, open_object
from reelweave.loader.storage.names import redact_uri, shown_name, shown_value
from reelweave.pipelines.configuration.keys import keys_of

DEFAULT, OVERRIDE = "default", "--set"

_MOST_ERRORS = 10
_MOST_COMPARED = 80  # characters of a key
_MOST_NEAR = 3

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
        option: name of the option.
        below: origin of values from below the file, by dotted key.
    """

    values: dict[str, Any]
    name: str
    document: Document
    set_keys: tuple[str, ...]
    option: str
    below: Mapping[str, str] = MappingProxyType({})

    def validate(self, model: type[Config]) -> Config:
        """Return the configuration: the model's defaults with these values.

        Raises:
            UsageError: names every key that is unknown or has a wrong value, where it was given and what is allowed.
        """
        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            wrong = _of_one_kind(error.errors())
            sentences, lines = list[str](), set[str]()
            for item in wrong[:_MOST_ERRORS]:
                location = _place_in(model, self.values, item["loc"])
                sentence = _sentence(dict(item), location, self._place(location.key))
                sentences.append(
                    sentence.removesuffix(location.known).rstrip("; ")
                    if location.known in lines
                    else sentence
                )
                if sentence.endswith(location.known):
                    lines.add(location.known)
            more = [f"and {len(wrong) - _MOST_ERRORS} more"] if len(wrong) > _MOST_ERRORS else []
            raise UsageError("; ".join([*dict.fromkeys(sentences), *more])) from error

    def origin(self, key: Sequence[int | str]) -> str:
        """Return where a value was given: the option, file and line, or `DEFAULT`."""
        return DEFAULT if _value_at(self.values, key) is _NOTHING else self._place(key)

    def _place(self, key: Sequence[int | str]) -> str:
        named = ".".join(map(str, key))
        if any(f"{named}.".startswith(f"{set_key}.") for set_key in self.set_keys):
            return self.option
        if named in self.below and _value_at(self.document.values, key) is _NOTHING:
            return self.below[named]
        # A key that is missing belongs where its section was given, which may be by options alone.
        section = tuple(key)
        while section and _value_at(self.values, section) is _NOTHING:
            section = section[:-1]
        prefix = f"{'.'.join(map(str, section))}."
        if _value_at(self.document.values, section) is _NOTHING and any(
            set_key.startswith(prefix) for set_key in self.set_keys
        ):
            return self.option
        line = self.document.line(key)
        return f"{self.name}{f', line {line}' if line else ''}"


def resolve(model: type[Config], file: File, overrides: Sequence[str], option: str = OVERRIDE) -> Config:
    """Return the validated configuration: the model's defaults, then the file, then the overrides.

    Args:
        model: configuration model of the command.
        file: path or URI of a YAML file, or None.
        overrides: "a.b=value" each, the value in YAML.
        option: option of the command that gives them.

    Raises:
        UsageError: names every key that is unknown or has a wrong value, where it was given and what is allowed.
    """
    return read_given(file, overrides, option).validate(model)


def read_given(file: File, overrides: Sequence[str], option: str = OVERRIDE) -> Given:
    """Read a YAML file, if any, and options. Options of the section ``storage`` also say how to reach a remote file.

    Raises:
        UsageError: the file is unreadable, too large or no mapping, or an option is no "key=value".
    """
    if file is None:
        return given_text("{}", "the configuration", overrides, option)
    if not _URI.match(str(file)):
        text = read_named(Path(file), MAX_BYTES, f"the configuration {file}")
        return given_text(text, str(file), overrides, option)
    reach = [option for option in overrides if option.strip().startswith("storage.")]
    storage = given_text("{}", OVERRIDE, reach).validate(_Reach).storage
    values = given_text(_read_remote(str(file), storage), redact_uri(str(file)), overrides, option)
    _check_no_code(values)
    return values


def _check_no_code(values: Given) -> None:
    """Refuse code by path or module in a file that others may have written or replaced on its way.

    The section `stages` is one of a curation's configuration, and of the section `curate` of the demo's.
    """
    for above in ((), ("curate",)):
        section: Any = values.values
        for name in (*above, "stages"):
            section = section.get(name) if isinstance(section, dict) else None
        for name, entry in section.items() if isinstance(section, dict) else ():
            key = (*above, "stages", str(name), "use")
            if isinstance(entry, dict) and entry.get("use") and (origin := values.origin(key)) != OVERRIDE:
                raise UsageError(
                    f"{shown_name('.'.join(key))} ({origin}): a configuration from an address may name installed"
                    " stages only; save it here and read it, or give that key with --set"
                )


def _read_remote(uri: str, config: StorageConfig) -> bytes:
    storage, name = open_object(uri, config)
    named = f"the configuration {redact_uri(uri)}"
    if storage.stat(name) is None:
        raise UsageError(f"{named} does not exist; give a YAML file")
    text = storage.read(name, 0, MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise UsageError(f"{named} is larger than {MAX_BYTES >> 10} KiB; give a smaller file")
    return text


def given_text(text: str | bytes, name: str, overrides: Sequence[str], option: str = OVERRIDE) -> Given:
    """Read the text of a YAML file, and options.

    Raises:
        UsageError: the text is no mapping, or an option is no "key=value".
    """
    document = read_yaml(text, name)
    if document.values is not None and not isinstance(document.values, dict):
        raise UsageError(f"{name} holds no mapping of keys to values")
    values = copy.deepcopy(document.values or {})  # the document stays what the file says
    set_keys: list[str] = []
    for override in overrides:
        key, equals, text_of_value = override.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            example = ", for example --set cut.crf=20" if option == OVERRIDE else ""
            raise UsageError(f"{option} {shown_name(override)}: write it as key=value{example}")
        if len(path) > MAX_DEPTH:
            raise UsageError(f"{option} {shown_name(key.strip())}: a key has at most {MAX_DEPTH} parts")
        where = f"{option} {shown_name(key.strip())}"
        if not text_of_value.strip():
            # A variable of the shell that is not set: it would leave the default in silence.
            raise UsageError(f"{where} has no value; write null for none, or '' for an empty text")
        _put(values, path, _value_of(text_of_value, where), where)
        set_keys.append(key.strip())
    return Given(values, name, document, tuple(set_keys), option)


def _value_of(text: str, where: str) -> Any:
    """Return the value of an option, in YAML."""
    try:
        return read_yaml(text, where).values
    except UsageError as error:
        if text.lstrip()[:1] not in ("'", '"'):
            raise
        raise UsageError(
            f"{error}; a text that begins with a quotation mark is quoted once more, such as \"'a' in caption\""
        ) from error


def _put(values: dict[str, Any], path: list[str], value: Any, where: str) -> None:
    """Put a value below its keys.

    Raises:
        UsageError: a section above has a value of its own, such as a preset's name, which would be lost.
    """
    for number, name in enumerate(path[:-1], 1):
        inner = values.setdefault(name, {})
        if inner is None:
            inner = values[name] = {}
        if not isinstance(inner, dict):
            section = shown_name(".".join(path[:number]))
            raise UsageError(
                f"{where}: {section} is {shown_value(inner)}, which stands for the whole section and would be lost;"
                f" give all its keys together, as {section}={{KEY: VALUE, ...}}, and not that value"
            )
        values = inner
    values[path[-1]] = value


class _Place(NamedTuple):
    """Location of a wrong key in its configuration.

    Attributes:
        key: the key as a person writes it.
        section: models of the section that it stands in; several for a union.
    """

    key: tuple[int | str, ...]
    section: tuple[type[BaseModel], ...]

    @property
    def known(self) -> str:
        """Keys of the section, in words."""
        return f"known here: {', '.join(self.names())}"

    def names(self) -> list[str]:
        """Return the keys of the section."""
        return sorted({name for model in self.section for name in model.model_fields})

    def near_keys(self, path: Sequence[str]) -> list[str]:
        """Return the keys that may be meant by an unknown one.

        These are keys of sections just below with its last name; else a key of the section in a similar spelling; else
        keys anywhere below with that name among their words, or the total alone, as "total_steps" for "steps".
        """
        wrong, above = path[-1], ".".join(path[:-1])
        keys = dict.fromkeys(key.path for model in self.section for key in keys_of(model, above))
        names = {key: key.rpartition(".")[2] for key in keys if ".NAME" not in key}
        alike = sorted(
            (key for key, name in names.items() if f"_{wrong}_" in f"_{name}_"),
            key=lambda key: key.count("."),
        )
        close = difflib.get_close_matches(wrong[:_MOST_COMPARED], self.names(), n=1)
        near = (
            [key for key in alike if names[key] == wrong and key.count(".") <= len(path)]
            or [".".join([*path[:-1], name]) for name in close]
            or [key for key in alike if names[key] == f"total_{wrong}"]
            or alike
        )
        return near[:_MOST_NEAR]


def _place_in(model: type[BaseModel], values: Any, loc: Sequence[int | str]) -> _Place:
    """Return the place of an error of pydantic, which names the kinds of unions between the keys."""
    models: tuple[type[BaseModel], ...] = (model,)
    key, section, annotation = list[int | str](), models, cast(Any, None)
    for part in loc:
        fields = [
            model_type.model_fields[str(part)]
            for model_type in models
            if str(part) in model_type.model_fields
        ]
        values = _inner(values, part) if (is_given := _inner(values, part) is not _NOTHING) else values
        if not fields and not is_given and _has_union(annotation):
            models = tuple(model_type for model_type in models if _is_of_kind(model_type, part)) or models
            section = models
            continue
        key.append(part)
        section = models
        if fields:
            annotation = fields[0].annotation
            models = tuple(inner for field in fields for inner in _models(field.annotation))
    return _Place(tuple(key), section)


def _of_one_kind(wrong: Sequence[Any]) -> list[Any]:
    """Return errors without those of the members of a union whose kind is not the given one."""
    other_names = {
        item["loc"][:-1]
        for item in wrong
        if item["type"] == "literal_error" and item["loc"][-1:] == ("kind",)
    }
    return [
        item for item in wrong if not any(item["loc"][: len(other)] == other for other in other_names)
    ] or list(wrong)


def _sentence(item: dict[str, Any], location: _Place, where: str) -> str:
    path = [str(part) for part in location.key]
    key = shown_name(".".join(path))
    if item["type"] == "extra_forbidden":
        near = location.near_keys(path)
        nearest = f"did you mean {' or '.join(near)}? " if near else ""
        return f"{key} ({where}) is no known key; {nearest}{location.known}"
    if item["type"] == "union_tag_not_found":
        tag = item["ctx"]["discriminator"].strip("'")
        return f"{key} ({where}) needs the key {tag}: set {key}.{tag} beside the others"
    message = str(item["msg"]).removeprefix("Value error, ")
    if isinstance(item["input"], dict):  # a rule about several keys, which its message names
        return f"{key} ({where}): {message}" if key else f"{where}: {message}"
    return f"{key} ({where}) cannot be {shown_value(item['input'])}: {message[:1].lower()}{message[1:]}"


_NOTHING = object()


def _inner(value: Any, part: int | str) -> Any:
    """Return the value below a key or a place in a list; `_NOTHING` if there is none."""
    if isinstance(value, dict):
        return value.get(part, _NOTHING)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return _NOTHING


def _value_at(value: Any, key: Sequence[int | str]) -> Any:
    """Return the value at a path; `_NOTHING` if there is none."""
    for part in key:
        if (value := _inner(value, part)) is _NOTHING:
            break
    return value


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in an annotation, such as the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _has_union(annotation: Any) -> bool:
    inner = [argument for argument in get_args(annotation) if argument is not type(None)]
    is_union = get_origin(annotation) in (Union, UnionType) and len(inner) > 1
    return is_union or any(map(_has_union, inner))


def _is_of_kind(model: type[BaseModel], kind: int | str) -> bool:
    return any(isinstance(kind, str) and field.default == kind for field in model.model_fields.values())
