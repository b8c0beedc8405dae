"""Local folders of published models, JSON and safetensors only, fetched from the hub if missing."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from reelweave.loader.base.named_file import read_named_text
from reelweave.loader.errors import UsageError, first_line
from reelweave.loader.storage.checksums import files_sha256

MAX_DESCRIPTION_BYTES = 1 << 20
DESCRIPTION = "config.json"
PIPELINE = "model_index.json"
SCHEDULER = "scheduler/scheduler_config.json"
TOKENIZER_FILES = (".json", ".model", ".txt")
"""Endings of the files of a text tokenizer."""


def part_folder(name: str, subfolder: str, key: str, weights: bool = True) -> Path:
    """Return the local folder of one part of a pipeline; fetches nothing but JSON and safetensors.

    Args:
        name: name of a pipeline on the hub, or a local folder of a pipeline or of the part itself.
        subfolder: subfolder of the part within a pipeline.
        key: configuration key, for errors.
        weights: False fetches the description alone.

    Raises:
        UsageError: the part does not exist.
    """
    root = Path(name)
    if root.is_dir():
        for folder in (root / subfolder, root):
            if (folder / DESCRIPTION).is_file():
                return folder
        inside = f"neither {subfolder}/{DESCRIPTION} nor" if subfolder else "no"
        raise UsageError(f"{key}={name!r} has {inside} {DESCRIPTION}")
    try:
        from huggingface_hub import snapshot_download

        prefix = f"{subfolder}/" if subfolder else ""
        patterns = [f"{prefix}*{ending}" for ending in ((".json", ".safetensors") if weights else (".json",))]
        return Path(snapshot_download(name, allow_patterns=patterns)) / subfolder
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(
            f"{key}={name!r} is no local folder and could not be fetched ({first_line(error)}); pass the path of a"
            f" folder with {subfolder}/{DESCRIPTION}, or a name on the hub"
        ) from error


def pipeline_description(name: str, key: str) -> dict[str, Any]:
    """Read the model_index.json of a pipeline; empty for a folder of one part, which has none.

    Args:
        name: name of a pipeline on the hub, or a local folder of a pipeline or of a part.
        key: configuration key, for errors.

    Raises:
        UsageError: it cannot be read.
    """
    return _pipeline_json(name, PIPELINE, key)


def scheduler_description(name: str, key: str) -> dict[str, Any]:
    """Read the scheduler_config.json of a pipeline; empty without one. Arguments as in `pipeline_description`.

    Raises:
        UsageError: it cannot be read.
    """
    return _pipeline_json(name, SCHEDULER, key)


def _pipeline_json(name: str, path: str, key: str) -> dict[str, Any]:
    root = Path(name) if Path(name).is_dir() else _fetch_folder(name, [path], key)
    return read_json(root / path, key) if (root / path).is_file() else {}


def part_description(name: str, subfolder: str, key: str) -> dict[str, Any]:
    """Read the config.json of one part of a pipeline, without fetching its weights; arguments as in `part_folder`.

    Raises:
        UsageError: the part does not exist.
    """
    root = Path(name)
    if root.is_dir():
        return description(part_folder(name, subfolder, key), key)
    prefix = f"{subfolder}/" if subfolder else ""
    return description(_fetch_folder(name, [f"{prefix}{DESCRIPTION}"], key) / subfolder, key)


def description(folder: Path, key: str) -> dict[str, Any]:
    """Read the model's config.json, with its class under ``_class_name``.

    Raises:
        UsageError: it is missing, or no JSON object.
    """
    return read_json(folder / DESCRIPTION, key)


def part_sha256(folder: Path, key: str, files: Iterable[Path]) -> str:
    """Return the sha256 of a part's config.json, without authorship fields, and of files of its weights.

    Args:
        folder: folder of the part.
        key: configuration key, for errors.
        files: the files, in an order of the caller's.
    """
    return files_sha256(files, described=_without_authorship(folder, key))


def hashed_description(folder: Path, key: str) -> str:
    """Return the sha256 of a part's config.json, without authorship fields; errors as in `description`."""
    return hashlib.sha256(_without_authorship(folder, key)).hexdigest()


def words_folder(name: str, subfolder: str, key: str) -> Path:
    """Return the local folder of a text tokenizer, whose files are fetched from the hub if missing.

    Args:
        name: name on the hub, or a local folder.
        subfolder: subfolder of the tokenizer.
        key: configuration key, for errors.

    Raises:
        UsageError: they cannot be fetched.
    """
    root, prefix = Path(name), f"{subfolder}/" if subfolder else ""
    if not root.is_dir():
        root = _fetch_folder(name, [f"{prefix}*{suffix}" for suffix in TOKENIZER_FILES], key)
    return root / subfolder


def _without_authorship(folder: Path, key: str) -> bytes:
    hashed_config = {
        name: value
        for name, value in description(folder, key).items()
        if name == "_class_name" or not (name.startswith("_") or name == "transformers_version")
    }
    return json.dumps(hashed_config, sort_keys=True).encode()


def read_json(path: Path, key: str) -> dict[str, Any]:
    """Read a JSON object of bounded size.

    Raises:
        UsageError: it is missing, too large, or no JSON object.
    """
    try:
        values = json.loads(read_named_text(path, MAX_DESCRIPTION_BYTES, f"{key}: {path}"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{key}: {path} is no JSON: {first_line(error)}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{key}: {path} is no JSON object")
    return values


def _fetch_folder(name: str, patterns: list[str], key: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=patterns))
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(
            f"{key}={name!r} is no local folder and could not be fetched ({first_line(error)}); pass the path of"
            " a pipeline's folder, or a name on the hub"
        ) from error


def diffusers() -> ModuleType:
    """Import the diffusers library.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import diffusers as library
    except ImportError as error:
        raise UsageError("published models need diffusers: pip install 'reelweave[diffusers]'") from error
    module: ModuleType = library
    return module
