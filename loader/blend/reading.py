"""Reader of blend files, ours and Megatron-Energon's, from disk or S3."""

import difflib
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from reelweave.loader.base.yaml_text import MAX_BYTES, read_yaml
from reelweave.loader.blend.config import BlendFile, Node, RepeatedNode, Subset, WeightedNode
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig
from reelweave.loader.storage.names import redact_uri, shown_value
from reelweave.loader.storage.opening import open_object

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

_NOT_OURS = {
    "aux": "auxiliary datasets are not read; keep such data beside the clips, as members of the same dataset",
    "join": "datasets are not joined; write what belongs together into one dataset",
    "joiner": "datasets are not joined; write what belongs together into one dataset",
    "dataset_config": "a dataset is read by its own index.parquet",
    "split_config": "the parts of a dataset are those of its own index.parquet; choose with split_part",
    "datasets": "this is a Metadataset of version 1; write it as MetadatasetV2, with blend",
}
"""Unsupported keys of Energon, and the reasons."""


def is_blend_file(uri: str) -> bool:
    """Return whether a path names a blend file, not a dataset."""
    return uri.lower().endswith((".yaml", ".yml"))


def beside(file: str, path: str) -> str:
    """Resolve ``path`` of a blend file.

    Args:
        file: location of the blend file, from this function or `canonical_name`.
        path: a URI, or a path relative to the file.

    Raises:
        UsageError: a remote file names a local path, or a path outside its bucket.
    """
    if _URI.match(path):
        return path
    if not _URI.match(file):
        return str((Path(file).parent / path).resolve())
    scheme, _, rest = file.partition("://")
    host, _, name = rest.partition("/")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    if path.startswith("/") or target.split("/")[0] == "..":
        raise UsageError(
            f"{path} does not lie beside {redact_uri(file)}; give a whole URI or a path relative to it"
        )
    return f"{scheme}://{host}/{target}" if target != "." else f"{scheme}://{host}"


def canonical_name(uri: str) -> str:
    """Return a canonical name of a file."""
    return uri if _URI.match(uri) else str(Path(uri).resolve())


def speaks_for(file: str) -> str:
    """Return the place that permissions attribute a blend file's names to; "" (the user) for a local file."""
    return file if _URI.match(file) and not file.lower().startswith("file:") else ""


def read_blend_file(file: str, config: StorageConfig, listed_in: str = "") -> BlendFile:
    """Read and validate a blend file.

    Args:
        file: location of the file, from `canonical_name`.
        config: timeouts, limits and permissions.
        listed_in: blend file that names this one; "" if the user did.

    Raises:
        UsageError: the file is missing or invalid; names the file and every wrong key.
    """
    storage, name = open_object(file, config, listed_in)
    shown = redact_uri(file)
    info = storage.stat(name)
    if info is None:
        raise UsageError(f"there is no file {shown}")
    if info.size > MAX_BYTES:
        raise UsageError(f"{shown} has {info.size} bytes; a blend file may have {MAX_BYTES}")
    document = read_yaml(storage.read(name, 0, MAX_BYTES + 1), shown)  # web servers may omit the size
    values = document.values
    if not isinstance(values, dict):
        raise UsageError(f"{shown} holds no mapping of keys to values; a blend file begins with splits:")
    module, kind = str(values.pop("__module__", "")), values.pop("__class__", "MetadatasetV2")
    if kind == "Metadataset":
        raise UsageError(f"{shown}: __class__: {_NOT_OURS['datasets']}")
    if kind != "MetadatasetV2" or (module and module.split(".")[:2] != ["megatron", "energon"]):
        raise UsageError(
            f"{shown}: __class__ is {module}.{kind}; only MetadatasetV2 of megatron.energon is read"
        )
    try:
        return BlendFile.model_validate(values)
    except ValidationError as error:
        wrong = [
            _at(document.line(item["loc"])) + _sentence(item["loc"], item["type"], item["msg"], item["input"])
            for item in error.errors()
        ]
        raise UsageError(f"{shown}: {'; '.join(wrong[:10])}") from error


def _at(line: int | None) -> str:
    return f"line {line}, " if line else ""


def _sentence(loc: Sequence[int | str], kind: str, message: str, value: Any) -> str:
    key, last = ".".join(map(str, loc)), str(loc[-1]) if loc else ""
    if kind == "extra_forbidden" and last in _NOT_OURS:
        return f"{key}: {_NOT_OURS[last]}"
    if kind == "extra_forbidden":
        valid_keys = sorted(_model_at(loc[:-1]).model_fields)
        close = difflib.get_close_matches(last, valid_keys, n=1)
        nearest = f"did you mean {close[0]}? " if close else ""
        return f"{key} is no known key; {nearest}known here: {', '.join(valid_keys)}"
    message = message.removeprefix("Value error, ")
    if isinstance(value, (dict, list)):
        return f"{key}: {message}"
    return f"{key} cannot be {shown_value(value)}: {message[:1].lower()}{message[1:]}"


def _model_at(loc: Sequence[int | str]) -> type[BaseModel]:
    """Return the model of the keys below a place in the file."""
    names = [part for part in loc if isinstance(part, str)]
    if not names:
        return BlendFile
    by_key: dict[str, type[BaseModel]] = {
        "subset": Subset,
        "blend": WeightedNode,
        "blend_epochized": RepeatedNode,
    }
    # The first name is a split's, which may equal a key.
    return Node if len(names) == 2 else by_key.get(names[-1], Node)
