"""Frame rate that a published model was trained at: a video at another rate moves at another speed."""

from collections.abc import Callable
from typing import Any

from reelweave.train.config.model import DiffusersConfig, ModelConfig
from reelweave.train.models.published.folder import part_description, pipeline_description

DEFAULT_FPS = 24
"""Frames per second of the files of models that name no rate, such as ours."""

_KEY = "model.name"
_WAN_5B_CHANNELS = 48
_COSMOS_BASE_FPS = 24.0
"""Rate at which positions count frames: with it they are the same as without ``model.fps``."""


def frame_rate(model: ModelConfig | DiffusersConfig) -> float | None:
    """Return the frames per second that a published model was trained at; reads and fetches JSON only.

    None for models of ours and for families without a rate. For Cosmos it is ``model.fps``, and without it the rate for
    which its positions in time then stand.

    Args:
        model: configuration of the model.

    Raises:
        UsageError: the published folder cannot be read.
    """
    if not isinstance(model, DiffusersConfig):
        return None
    described = part_description(model.name, model.subfolder, _KEY)
    rate_of = _RATES.get(str(described.get("_class_name")))
    return None if rate_of is None else rate_of(model, described)


def file_fps(rate: float | None) -> int:
    """Return the frames per second of video files of a model with this rate: a whole number, at least 1."""
    return DEFAULT_FPS if rate is None else max(1, round(rate))


def same_rate(rate: float, other: float) -> bool:
    """Return whether two rates are one in practice: 23.976 and 24, 29.97 and 30."""
    return abs(rate - other) <= 0.01 * other


def _wan(model: DiffusersConfig, described: dict[str, Any]) -> float:
    """Wan 2.2 5B is told by its VAE of 48 channels; a fine-tuned copy may have no pipeline around it."""
    if described.get("in_channels") == _WAN_5B_CHANNELS:
        return 24.0
    return 24.0 if pipeline_description(model.name, _KEY).get("expand_timesteps") else 16.0


_RATES: dict[str, Callable[[DiffusersConfig, dict[str, Any]], float | None]] = {
    "WanTransformer3DModel": _wan,
    "CogVideoXTransformer3DModel": lambda _, config: 8.0 if config.get("patch_size_t") is None else 16.0,
    "HunyuanVideoTransformer3DModel": lambda _, __: 24.0,
    "CosmosTransformer3DModel": lambda model, _: model.fps or _COSMOS_BASE_FPS,
}
