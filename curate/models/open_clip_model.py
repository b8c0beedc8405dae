"""CLIP model of ``open_clip_torch``: pictures and texts as unit vectors in one space."""

import difflib
import pickle
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.models.device import Device, inference, pick_device, weights_sha256
from reelweave.curate.models.hub import check_hub, local_folder
from reelweave.loader.errors import UsageError, first_line
from reelweave.loader.pretrained import load_open_clip

if TYPE_CHECKING:
    import torch

_HUB, _FOLDER = "hf-hub:", "local-dir:"
_CONFIG = "open_clip_config.json"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pth")

Floats = NDArray[np.float32]


class OpenClipPreprocessing:
    """Preprocessing of a model's pictures. It needs no weights, and is pickled as its settings.

    Args:
        settings: ``preprocess_cfg`` of the model's visual tower.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        size = self._settings["size"]
        # Twice the network's input size: the rest of the scaling is the model's own preprocessing.
        self.picture_size: int = 2 * (size if isinstance(size, int) else max(size))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_transform"}

    @cached_property
    def _transform(self) -> Any:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        return image_transform_v2(PreprocessCfg(**self._settings), is_train=False)

    def __call__(self, pictures: NDArray[np.uint8]) -> Floats:
        """Return the model's input for pictures, uint8 [n, h, w, 3] RGB: float32 [n, 3, h, w]."""
        from PIL import Image

        return np.stack([self._transform(Image.fromarray(picture)).numpy() for picture in pictures])


class OpenClip:
    """Loaded model of ``open_clip_torch``.

    Args:
        model: Model name or folder, for `locate`.
        pretrained: Weights, for `locate`.
        device: Device of the model.
        threads: CPU threads.
        clips: Blocks per forward pass on a GPU.

    Raises:
        UsageError: The model cannot be loaded.
    """

    def __init__(self, model: str, pretrained: str, device: Device, threads: int, clips: int) -> None:
        from safetensors import SafetensorError

        name, weights = locate(model, pretrained)
        self._device, self._threads = pick_device(device), threads
        # A CPU gains nothing from larger passes; a single clip per pass cannot depend on its neighbours.
        self._blocks_per_pass = clips if self._device != "cpu" else 1
        try:
            loaded, self._tokenizer = load_open_clip(name, weights, self._device)
        except (
            RuntimeError,
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            pickle.UnpicklingError,
            SafetensorError,
        ) as error:
            raise UsageError(
                f"embed.model={model} with embed.pretrained={pretrained!r} cannot be loaded"
                f" ({first_line(error)}); give weights made for this model"
            ) from error
        self._model = loaded.eval()
        self.preprocessing = OpenClipPreprocessing(self._model.visual.preprocess_cfg)

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the weights."""
        return weights_sha256(self._model)

    def encode(self, blocks: Sequence[Floats], length: int) -> list[Floats]:
        """Embed the pictures of several clips.

        Every forward pass has the same shape, padded with empty pictures, so that a picture's vector does not
        depend on the batch.

        Args:
            blocks: Pictures of one clip each after `OpenClipPreprocessing`, float32 [n, 3, h, w] with n <= ``length``.
            length: Pictures per block after padding.

        Returns:
            float32 [n, D], rows of unit length, for each block.
        """
        import torch

        vectors: list[Floats] = []
        for start in range(0, len(blocks), self._blocks_per_pass):
            group = blocks[start : start + self._blocks_per_pass]
            batch = torch.zeros(self._blocks_per_pass, length, *group[0].shape[1:])
            for index, block in enumerate(group):
                batch[index, : len(block)] = torch.from_numpy(block)
            with inference(self._device, self._threads):
                encoded = self._model.encode_image(batch.flatten(0, 1).to(self._device))
            unit = _unit(encoded).reshape(self._blocks_per_pass, length, -1)
            vectors += [unit[index, : len(block)] for index, block in enumerate(group)]
        return vectors

    def texts(self, words: Sequence[str]) -> Floats:
        """Embed texts, float32 [n, D], rows of unit length; like pictures in passes of one shape, see `encode`."""
        size, vectors = self._blocks_per_pass, list[Floats]()
        for start in range(0, len(words), size):
            group = words[start : start + size]
            tokens = self._tokenizer([*group, *[""] * (size - len(group))])
            with inference(self._device, self._threads):
                encoded = self._model.encode_text(tokens.to(self._device))
            vectors.append(_unit(encoded)[: len(group)])
        return np.concatenate(vectors)

    def cut(self, words: Sequence[str]) -> list[bool]:
        """Return for each text whether it is longer than the model reads, so that its end is cut off."""
        limit = int(self._tokenizer.context_length)
        tokens = self._tokenizer([*words, ""], context_length=limit + 1)
        # The last token of an empty text is the padding.
        return [bool(last != tokens[-1, -1]) for last in tokens[:-1, -1]]


def locate(model: str, pretrained: str) -> tuple[str, str | None]:
    """Resolve a configuration without loading or downloading anything.

    Args:
        model: Folder with ``open_clip_config.json`` and weights, ``hf-hub:OWNER/NAME``, or a model name of
            ``open_clip``.
        pretrained: File of weights or tag of a training run; only for a model name.

    Returns:
        Model name and weights for ``open_clip.create_model``.

    Raises:
        UsageError: There is nothing by that name; the message suggests the nearest names.
    """
    if (place := check_model_path(model, pretrained)) is not None:
        return place, None
    import open_clip

    name = model.replace("/", "-")
    tags = open_clip.list_pretrained_tags_by_model(name)
    if not pretrained:
        raise UsageError(
            f"embed.model={model} needs weights: set embed.pretrained to a local file, or to a tag"
            f" for the hub ({', '.join(tags) or 'it has none'})"
        )
    if Path(pretrained).is_file():
        return name, str(pretrained)
    if pretrained not in tags:
        raise UsageError(
            f"embed.pretrained={pretrained} is no file, and no training run of {name}"
            f"{_nearest(pretrained, tags)}; its tags: {', '.join(tags) or 'none'}"
        )
    wants = bool(open_clip.get_pretrained_cfg(name, pretrained).get("quick_gelu", False))
    has = bool(open_clip.get_model_config(name).get("quick_gelu", False))
    other = name.removesuffix("-quickgelu") if has else f"{name}-quickgelu"
    if wants != has and other in listed_names():
        # open_clip only warns, and its embeddings are then wrong.
        raise UsageError(
            f"the weights {pretrained} were trained with another activation than {name} has; set embed.model={other}"
        )
    return name, pretrained


def check_model_path(model: str, pretrained: str) -> str | None:
    """Check what a configuration names, at once: nothing is loaded, nor open_clip, which takes seconds.

    Args:
        model: See `locate`.
        pretrained: See there.

    Returns:
        Name of a folder or of a model on the hub for ``open_clip.create_model``; None for a name in its list.

    Raises:
        UsageError: There is nothing by that name, or the folder lacks a file.
    """
    if model.startswith(_HUB):
        return model
    listed, name = listed_names(), model.replace("/", "-")
    folder = None if name in listed else local_folder(model.removeprefix(_FOLDER))
    if folder is not None:
        return _folder(folder, pretrained)
    if name not in listed:
        raise UsageError(
            f"embed.model={model} is no model that open_clip knows{_nearest(name, sorted(listed))};"
            f" give one of its names, a folder with {_CONFIG} and weights, or {_HUB}OWNER/NAME"
        )
    return None


@cache
def listed_names() -> frozenset[str]:
    """Return the names of the models that open_clip knows, from its files where it has them, without importing it."""
    found = find_spec("open_clip")
    if found is not None and found.origin is not None:
        files = Path(found.origin).parent.glob("model_configs/*.json")
        if listed := frozenset(path.stem for path in files):
            return listed
    import open_clip

    return frozenset(open_clip.list_models())


def check_weights(model: str, pretrained: str) -> None:
    """Check that the weights are on this machine or that the hub has them.

    Raises:
        UsageError: Neither has them, or there is nothing by that name.
    """
    name, weights = locate(model, pretrained)
    import open_clip

    if name.startswith(_HUB):
        check_hub(name.removeprefix(_HUB), f"embed.model={model}")
    elif weights is not None and not Path(weights).is_file():
        hub_path = str(open_clip.get_pretrained_cfg(name, weights).get("hf_hub", ""))
        if hub_path:
            check_hub("/".join(hub_path.split("/")[:2]), f"embed.pretrained={pretrained}")


def _folder(folder: Path, pretrained: str) -> str:
    if pretrained:
        raise UsageError(f"the folder {folder} has weights of its own; leave embed.pretrained empty")
    if not (folder / _CONFIG).is_file():
        raise UsageError(f"{folder} holds no {_CONFIG}; give a folder that open_clip saved")
    if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        raise UsageError(f"{folder} holds no weights; put an open_clip_model.safetensors beside {_CONFIG}")
    return f"{_FOLDER}{folder}"


def _nearest(name: str, valid_names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, valid_names, n=3)
    return f" (near: {', '.join(close)})" if close else ""


def _unit(encoded: "torch.Tensor") -> Floats:
    vectors = encoded.float().cpu().numpy()
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), np.float32)
