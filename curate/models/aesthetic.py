"""Aesthetic score: a small head on the CLIP embedding, from a file of weights.

Two published layouts are recognized by their tensors' names and shapes. One is a single linear layer
("weight", "bias": github.com/LAION-AI/aesthetic-predictor). The other is five of them in a row
("layers.0.weight" ...: github.com/christophschuhmann/improved-aesthetic-predictor). There is no activation
between the five, only dropout during training, so they are one linear map too, and are multiplied out on
loading.
"""

import pickle
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reelweave.loader.errors import UsageError, first_line
from reelweave.loader.settings import SET, Settings
from reelweave.loader.storage.checksums import file_sha256

_MAX_BYTES = 256 * 2**20

Floats = NDArray[np.float32]


class AestheticConfig(Settings):
    """Score ``aesthetic``, about 1 to 10; needs embed.backend=open_clip with the CLIP model of the head."""

    REVISION: ClassVar[int] = 0
    READ_WITH: ClassVar = {"reduce": ("weights", SET)}

    weights: str | None = Field(
        None, description="weights of the aesthetic head, .safetensors or .pth; empty: no aesthetic score"
    )
    reduce: Literal["mean", "min"] = Field(
        "mean", description="pooling of the picture scores of a clip: their mean or their minimum"
    )


class AestheticHead:
    """Aesthetic head, loaded from its file.

    Raises:
        UsageError: There is no such file, or it holds another kind of head.
    """

    def __init__(self, config: AestheticConfig) -> None:
        if config.weights is None:
            raise UsageError("aesthetic.weights is empty; give the file of an aesthetic head")
        self._config = config
        path = Path(config.weights)
        self._weight, self._bias = flatten_layers(_read(path), str(path))
        self.sha256 = file_sha256(path)

    def check(self, width: int) -> None:
        """Check that embeddings of ``width`` numbers fit the head.

        Raises:
            UsageError: The width differs.
        """
        if width != len(self._weight):
            raise UsageError(
                f"{self._config.weights} scores embeddings of {len(self._weight)} numbers, and the CLIP model gives"
                f" {width}; set embed.model to the model the head was trained on (mostly ViT-L-14 of openai)"
            )

    def score(self, frames: Floats) -> float:
        """Score a clip by the CLIP vectors of its pictures, float32 [n, D], unit length."""
        self.check(frames.shape[1])
        scores = picture_scores(frames, self._weight, self._bias)
        return float(scores.min() if self._config.reduce == "min" else scores.mean())


def picture_scores(frames: Floats, weight: NDArray[np.float64], bias: float) -> NDArray[np.float64]:
    """Return the scores [n] of unit vectors [n, D] under a head from `flatten_layers`."""
    return np.asarray(frames.astype(np.float64) @ weight + bias, np.float64)


def flatten_layers(tensors: dict[str, Floats], name: str) -> tuple[NDArray[np.float64], float]:
    """Multiply a row of linear layers out to one: weight [D] and bias.

    Args:
        tensors: "weight" and "bias", or "layers.N.weight" and "layers.N.bias".
        name: Name of the head, for the error message.

    Raises:
        UsageError: The tensors are no such row.
    """
    # One layer, or several by number, each with weight and bias and nothing else.
    layers = sorted(
        (int(key.split(".")[1]) if key.startswith("layers.") else 0, key.removesuffix("weight"))
        for key in tensors
        if key == "weight"
        or (key.startswith("layers.") and key.split(".")[1].isdigit() and key.endswith("weight"))
    )
    expected_names = {f"{prefix}{kind}" for _, prefix in layers for kind in ("weight", "bias")}
    wrong = f"{name} holds no aesthetic head of a known layout"
    if not layers or expected_names != set(tensors):
        raise UsageError(f"{wrong}: its tensors are {', '.join(sorted(tensors)[:6]) or 'none'}")
    # Without activations between them they are one linear map.
    weight, bias = np.empty(0), np.zeros(1)
    for index, (_, prefix) in enumerate(layers):
        W, b = tensors[f"{prefix}weight"].astype(np.float64), tensors[f"{prefix}bias"].astype(np.float64)
        if W.ndim != 2 or b.shape != W.shape[:1] or (index and W.shape[1] != weight.shape[0]):
            raise UsageError(
                f"{wrong}: {prefix}weight has shape {W.shape}, which does not fit its neighbours"
            )
        weight, bias = (W @ weight, W @ bias + b) if index else (W, b)
    if weight.shape[0] != 1 or not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise UsageError(f"{wrong}: it ends in {weight.shape[0]} numbers instead of one finite score")
    return weight[0], float(bias[0])


def check_head_file(path: Path) -> None:
    """Check that there is a file of the size of a head, without reading it.

    Raises:
        UsageError: There is none.
    """
    if not path.is_file():
        raise UsageError(f"aesthetic.weights={path} is no file; give the weights of an aesthetic head")
    if path.stat().st_size > _MAX_BYTES:
        raise UsageError(f"aesthetic.weights={path} has {path.stat().st_size} bytes; a head is far smaller")


def _read(path: Path) -> dict[str, Floats]:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_head_file(path)
    try:
        if path.suffix == ".safetensors":
            loaded = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        return {str(name): tensor.float().numpy() for name, tensor in loaded.items()}
    except (
        SafetensorError,
        pickle.UnpicklingError,
        RuntimeError,
        OSError,
        EOFError,
        AttributeError,
    ) as error:
        raise UsageError(
            f"aesthetic.weights={path} cannot be read ({first_line(error)});"
            " give a .safetensors file, or a .pth that holds tensors alone"
        ) from error
