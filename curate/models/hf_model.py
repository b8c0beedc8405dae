"""Model of transformers in the configuration, as a folder or as a name on the hub."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

from reelweave.curate.models.hub import check_hub, local_folder
from reelweave.loader.errors import UsageError, first_line
from reelweave.loader.pretrained import check_model_type, load_pretrained
from reelweave.loader.storage.checksums import files_sha256

_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_TOKENIZERS = ("tokenizer.json", "*.model", "vocab.*")

T = TypeVar("T")


@dataclass(frozen=True)
class NamedModel:
    """Configuration key and value of a model, with loaders for its parts.

    Attributes:
        key: Configuration key, such as "captions.model".
        name: Folder, or OWNER/NAME on the hub.
    """

    key: str
    name: str

    def check_files(self, weights: Sequence[str] = ("*.safetensors",)) -> None:
        """Check that the files are available.

        Args:
            weights: Patterns; some file must match one of them.

        Raises:
            UsageError: The files are not available; the message says what to do.
        """
        self.check_folder(weights)
        if local_folder(self.name) is None:
            check_hub(self.name, f"{self.key}={self.name}")

    def check_folder(self, weights: Sequence[str] = ("*.safetensors",)) -> None:
        """Check what lies in a local folder, at once; a name on the hub is asked for by `check_files`.

        Args:
            weights: See `check_files`.

        Raises:
            UsageError: There is no such folder, it lacks a file, or holds a model of an unknown type.
        """
        folder = local_folder(self.name)
        if folder is None:
            return
        if not (folder / "config.json").is_file():
            raise UsageError(
                f"{self.key}={folder} holds no config.json; give the folder of a transformers model"
            )
        if not _holds(folder, weights):
            raise UsageError(f"{self.key}={folder} holds no weights; put model.safetensors there")
        if not _holds(folder, _TOKENIZERS):
            # transformers would create an empty one, in which every word is unknown.
            raise UsageError(f"{self.key}={folder} holds no tokenizer; put tokenizer.json there")
        try:
            check_model_type(folder)
        except (OSError, ValueError) as error:
            raise self._refusal(error) from error

    def folder(self) -> Path:
        """Return the folder of the files, after a download for a name on the hub.

        Raises:
            UsageError: The files are not available.
        """
        folder = local_folder(self.name)
        if folder is not None:
            return folder
        from huggingface_hub import snapshot_download

        return self.load_guarded(lambda: Path(snapshot_download(self.name, allow_patterns=list(_FILES))))

    def location(self) -> str:
        """Return the argument for transformers: the folder, or the name on the hub."""
        return str(local_folder(self.name) or self.name)

    def config(self) -> Any:
        """Load the model's own configuration.

        Raises:
            UsageError: The configuration cannot be read.
        """
        import transformers

        return self.load_guarded(lambda: load_pretrained(transformers.AutoConfig, self.location()))

    def tokenizer(self) -> Any:
        """Load the model's tokenizer.

        Raises:
            UsageError: The tokenizer cannot be loaded.
        """
        import transformers

        return self.load_guarded(lambda: load_pretrained(transformers.AutoTokenizer, self.location()))

    def check_vocabulary(self, model: Any, tokenizer: Any) -> None:
        """Check that the model has an embedding for every token of the tokenizer.

        Raises:
            UsageError: The tokenizer has more tokens.
        """
        if len(tokenizer) > model.get_input_embeddings().num_embeddings:
            raise UsageError(
                f"{self.key}={self.name} holds the tokenizer of another model; put its own beside it"
            )

    def identity(self, library: Literal["transformers", "vllm"]) -> dict[str, str]:
        """Return the provenance: name, sha256 of configuration and weights, and version of the library.

        A folder is named by its last part alone, so that moving the model changes nothing.
        """
        named = local_folder(self.name)
        folder = self.folder()
        return {
            "model": self.name if named is None else named.resolve().name,
            "runtime": f"{library} {version(library)}",
            "config_sha256": files_sha256([folder / "config.json"]),
            "weights_sha256": files_sha256(sorted(folder.glob("*.safetensors"))),
        }

    def load_guarded(self, load: Callable[[], T]) -> T:
        """Return the result of ``load``, and turn its failures into one sentence.

        Raises:
            UsageError: Loading failed.
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
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> UsageError:
        return UsageError(
            f"{self.key}={self.name} cannot be loaded ({first_line(error)}); give another model"
        )


@lru_cache(maxsize=1)
def _quiet() -> None:
    """Silence transformers below errors: its bars and hints would mix with our own progress."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _holds(folder: Path, patterns: Sequence[str]) -> bool:
    return any(path for pattern in patterns for path in folder.glob(pattern))
