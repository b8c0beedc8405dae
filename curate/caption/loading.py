"""Getting a transformers model from a folder or a hub, or a sentence that says why not."""

import hashlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from curate.hub import check_hub, local_folder
from loader.errors import UsageError

_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_TOKENIZERS = ("tokenizer.json", "*.model", "vocab.*")

T = TypeVar("T")


def check_files(name: str, key: str) -> None:
    """Finds out whether a model's files can be had.

    Args:
        name: folder, or OWNER/NAME on a hub.
        key: of the configuration, for the message.

    Raises:
        UsageError: they cannot, and what to do.
    """
    folder = local_folder(name)
    if folder is None:
        check_hub(name, f"{key}={name}")
    elif not (folder / "config.json").is_file():
        raise UsageError(f"{key}={folder} holds no config.json; give the folder of a transformers model")
    elif not any(folder.glob("*.safetensors")):
        # Weights in other formats are pickles.
        raise UsageError(f"{key}={folder} holds no weights; put model.safetensors there")
    elif not any(path for pattern in _TOKENIZERS for path in folder.glob(pattern)):
        raise UsageError(f"{key}={folder} holds no tokenizer; put tokenizer.json there")


def model_folder(name: str, key: str) -> Path:
    """The folder with a model's files, fetched from the hub where ``name`` means one there.

    Raises:
        UsageError: it cannot be had.
    """
    folder = local_folder(name)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download

    return guarded(lambda: Path(snapshot_download(name, allow_patterns=list(_FILES))), name, key)


def guarded(load: Callable[[], T], name: str, key: str) -> T:
    """What ``load`` gives; its failures become one sentence.

    Raises:
        UsageError: it failed.
    """
    from jinja2 import TemplateError
    from safetensors import SafetensorError

    try:
        return load()
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ImportError,
        RuntimeError,
        TemplateError,
        SafetensorError,
    ) as error:
        raise UsageError(
            f"{key}={name} cannot be loaded ({first_line(error)}); give another model"
        ) from error


def first_line(error: Exception) -> str:
    """What an error says, short."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."


def digests(folder: Path) -> dict[str, str]:
    """Sha256 of a model's configuration and of its weights, by the bytes of its files."""
    return {
        "config_sha256": _digest([folder / "config.json"]),
        "weights_sha256": _digest(sorted(folder.glob("*.safetensors"))),
    }


def identity(name: str, key: str, library: str) -> dict[str, str]:
    """What a model is, for provenance: its name, sha256 of configuration and weights, and what runs it.

    A folder gives only its last part as the name, so that the same model may lie elsewhere tomorrow.
    """
    folder = local_folder(name)
    shown = name if folder is None else folder.resolve().name
    return {"model": shown, "runtime": f"{library} {version(library)}", **digests(model_folder(name, key))}


def pick_dtype(wanted: str, device: str) -> Any:
    """The torch type of the weights."""
    import torch

    if wanted != "auto":
        return getattr(torch, wanted)
    return torch.float32 if device == "cpu" else torch.bfloat16


def check_vocabulary(model: Any, tokenizer: Any, name: str, key: str) -> None:
    """Passes when the model knows every token.

    Raises:
        UsageError: it does not.
    """
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise UsageError(f"{key}={name} holds the tokenizer of another model; put its own beside it")


def _digest(files: list[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()
