"""A transformers model as the configuration names it: by its folder, or by its name on a hub."""

import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

from curate.models.hub import check_hub, local_folder
from loader.errors import UsageError, first_line

_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_TOKENIZERS = ("tokenizer.json", "*.model", "vocab.*")

T = TypeVar("T")


@dataclass(frozen=True)
class NamedModel:
    """Key and value of the configuration that name a model, and getting from there to its parts.

    Attributes:
        key: "captions.model".
        name: folder, or OWNER/NAME on a hub.
    """

    key: str
    name: str

    def check_files(self, weights: Sequence[str] = ("*.safetensors",)) -> None:
        """Finds out whether the files can be had.

        Args:
            weights: patterns, one of which some file must fit.

        Raises:
            UsageError: they cannot, and what to do.
        """
        folder = local_folder(self.name)
        if folder is None:
            check_hub(self.name, f"{self.key}={self.name}")
        elif not (folder / "config.json").is_file():
            raise UsageError(
                f"{self.key}={folder} holds no config.json; give the folder of a transformers model"
            )
        elif not _holds(folder, weights):
            raise UsageError(f"{self.key}={folder} holds no weights; put model.safetensors there")
        elif not _holds(folder, _TOKENIZERS):
            # transformers would make up an empty one, to which every word is unknown.
            raise UsageError(f"{self.key}={folder} holds no tokenizer; put tokenizer.json there")

    def folder(self) -> Path:
        """Where the files lie, fetched from the hub where the name means one there.

        Raises:
            UsageError: they cannot be had.
        """
        folder = local_folder(self.name)
        if folder is not None:
            return folder
        from huggingface_hub import snapshot_download

        return self.guarded(lambda: Path(snapshot_download(self.name, allow_patterns=list(_FILES))))

    def source(self) -> str:
        """What transformers is told: the folder, or the name on a hub."""
        return str(local_folder(self.name) or self.name)

    def config(self) -> Any:
        """The model's own configuration.

        Raises:
            UsageError: it cannot be read.
        """
        import transformers

        return self.guarded(lambda: transformers.AutoConfig.from_pretrained(self.source()))

    def tokenizer(self) -> Any:
        """The model's tokenizer.

        Raises:
            UsageError: it cannot be loaded.
        """
        import transformers

        return self.guarded(lambda: transformers.AutoTokenizer.from_pretrained(self.source()))

    def check_vocabulary(self, model: Any, tokenizer: Any) -> None:
        """Passes when the model knows every token.

        Raises:
            UsageError: it does not.
        """
        if len(tokenizer) > model.get_input_embeddings().num_embeddings:
            raise UsageError(
                f"{self.key}={self.name} holds the tokenizer of another model; put its own beside it"
            )

    def identity(self, library: Literal["transformers", "vllm"]) -> dict[str, str]:
        """What the model is, for provenance: name, sha256 of configuration and weights, and what runs it.

        A folder gives only its last part as the name, so that the same model may lie elsewhere tomorrow.
        """
        named = local_folder(self.name)
        folder = self.folder()
        return {
            "model": self.name if named is None else named.resolve().name,
            "runtime": f"{library} {version(library)}",
            "config_sha256": _digest([folder / "config.json"]),
            "weights_sha256": _digest(sorted(folder.glob("*.safetensors"))),
        }

    def guarded(self, load: Callable[[], T]) -> T:
        """What ``load`` gives; its failures become one sentence.

        Raises:
            UsageError: it failed.
        """
        from jinja2 import TemplateError
        from safetensors import SafetensorError

        _quiet()
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
            pickle.UnpicklingError,
            TemplateError,
            SafetensorError,
        ) as error:
            raise UsageError(
                f"{self.key}={self.name} cannot be loaded ({first_line(error)}); give another model"
            ) from error


@lru_cache(maxsize=1)
def _quiet() -> None:
    """Let transformers say nothing below an error: its bars and advice would stand among our own progress."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _holds(folder: Path, patterns: Sequence[str]) -> bool:
    return any(path for pattern in patterns for path in folder.glob(pattern))


def _digest(files: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()
