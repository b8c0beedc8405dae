"""Published transformers without a copy of their weights: the structure, and tensors mapped from their files."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from reelweave.loader.errors import UsageError, first_line
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.models.published.folder import diffusers, part_sha256, read_json
from reelweave.train.models.published.formats.whole import read_whole, weight_files
from reelweave.train.models.published.names.native import NativeNames

WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = f"{WEIGHTS}.index.json"

_log = logging.getLogger(__name__)


class PublishedModel:
    """Transformer of diffusers in a local folder.

    Weights are mapped, not read. A tensor takes memory only where it is read, and then memory of the page
    cache that all processes of a host share. Values and dtypes are those of diffusers' own
    ``from_pretrained``.

    Args:
        config: configuration of the model.
        folder: folder with config.json and weights in safetensors.
        source: class in diffusers.
        names: native names of its family, for ``config.weights``; None: it has none.
    """

    def __init__(
        self, config: DiffusersConfig, folder: Path, source: str, names: NativeNames | None = None
    ) -> None:
        self._name, self._folder, self._source = config.name, folder, source
        self._weights, self._names = config.weights, names
        self._dtype: torch.dtype = getattr(torch, config.dtype)

    def sha256(self) -> str:
        """Return the digest of configuration and weights, independent of their path; reads all files.

        Raises:
            UsageError: a file is missing.
        """
        with self._errors_in_words():
            return part_sha256(self._folder, "model.name", self._files())

    def structure(self) -> Any:
        """Build the model with parameters on the meta device and buffers on the CPU.

        Consumes the random numbers that loading by diffusers consumes, so that adapters drawn next are the same.

        Raises:
            UsageError: the folder describes no model of this class.
        """
        with self._errors_in_words():
            return empty_model(self._source, self._folder, self._dtype)

    def load_(self, model: Any) -> None:
        """Give a structure its weights, mapped where their file has the model's dtype.

        Raises:
            UsageError: weights are missing or do not fit the model.
        """
        state = model.state_dict()
        weights = {name: tensor.to(state[name].dtype) for name, tensor in self._read_stored(state)}
        model.load_state_dict(weights, assign=True)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and value of each parameter and buffer, mapped in the dtype of its file.

        Raises:
            UsageError: weights are missing or do not fit the model.
        """
        model = self.structure()
        stored = dict(self._read_stored(model.state_dict()))
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            yield name, stored.get(name, tensor)

    def _read_stored(self, state: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of a state dict from the files."""
        if self._weights is not None:
            yield from self._read_given(state)
            return
        missing, unused = set(state), set()
        with self._errors_in_words():
            for path in self._files():
                with safe_open(path, "pt") as file:
                    for name in file.keys():  # noqa: SIM118 - no mapping
                        if name not in missing:
                            unused.add(name)
                            continue
                        missing.remove(name)
                        tensor, shape = file.get_tensor(name), list(state[name].shape)
                        if list(tensor.shape) != shape:
                            raise ValueError(f"{name} has shape {list(tensor.shape)} instead of {shape}")
                        if state[name].is_floating_point() and not tensor.is_floating_point():
                            raise ValueError(f"{name} is of type {tensor.dtype}, as quantized weights are")
                        yield name, tensor
            if missing:
                raise ValueError(f"its weights lack {min(missing)}")
        if unused:
            _log.warning(
                "%s: the model has no %s, which is left out", self._folder, ", ".join(sorted(unused))
            )

    def _read_given(self, state: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of a state dict from the files of `model.weights`."""
        files = self._files()
        try:
            yield from read_whole(files, state, self._names, f"model.weights={str(self._weights)!r}")
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"model.weights={str(self._weights)!r} is no safetensors file: {first_line(error)}"
            ) from error

    def _files(self) -> list[Path]:
        """Return the files of weights: those of `model.weights`, one, or those that the index names."""
        if self._weights is not None:
            return weight_files(self._weights, "model.weights")
        if not (self._folder / INDEX).is_file():
            return [self._folder / WEIGHTS]
        weight_map = read_json(self._folder / INDEX, "model.name").get("weight_map")
        if not isinstance(weight_map, dict) or any(
            Path(str(name)).name != name for name in weight_map.values()
        ):
            raise ValueError(f"{INDEX} does not map each tensor to a file beside it")
        return [self._folder / name for name in sorted(set(weight_map.values()))]

    @contextmanager
    def _errors_in_words(self) -> Iterator[None]:
        """Turn errors of other libraries into one for people."""
        try:
            yield
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(
                f"model.name={self._name!r} could not be loaded ({first_line(error)}); its folder needs"
                " config.json and weights in safetensors"
            ) from error


def empty_model(source: str, folder: Path, dtype: torch.dtype) -> Any:
    """Build a model of diffusers from its config.json alone, with parameters on the meta device and buffers on the CPU.

    Args:
        source: class in diffusers.
        folder: folder with config.json.
        dtype: dtype of the parameters, as loading by diffusers gives it.

    Raises:
        UsageError: diffusers is missing.
        OSError, ValueError, RuntimeError: the folder describes no model of this class.
    """
    with torch.device("cpu"):
        # Modules of diffusers make tensors when they are imported, such as the wavelets of Cosmos.
        from accelerate import init_empty_weights
        from diffusers.models.modeling_utils import no_init_weights

        kind = getattr(diffusers(), source)
        with _default_dtype(dtype), no_init_weights(), init_empty_weights():
            model = kind.from_config(kind.load_config(folder))
    wide = set(model._keep_in_fp32_modules or ())
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if wide & set(name.split(".")) else dtype)
    return model


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create tensors in a dtype, as diffusers does while it loads."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
