"""Frame rate that a published model was trained at: a video at another rate moves at another speed."""

from reelweave.train.config.model import DiffusersConfig, ModelConfig
from reelweave.train.models.published.folder import part_description

DEFAULT_FPS = 24
"""Frames per second of the files of models that name no rate, such as ours."""

_KEY = "model.name"


def frame_rate(model: ModelConfig | DiffusersConfig) -> float | None:
    """Return the frames per second that a published model was trained at; reads and fetches JSON only.

    None for models of ours and for families without a rate.

    Args:
        model: configuration of the model.

    Raises:
        UsageError: the published folder cannot be read.
    """
    if not isinstance(model, DiffusersConfig):
        return None
    # Families import torch, which only configurations of published models should wait for.
    from reelweave.train.models.published.families.registry import TRANSFORMERS

    described = part_description(model.name, model.subfolder, _KEY)
    family = TRANSFORMERS.get(str(described.get("_class_name")))
    return None if family is None else family.frame_rate(model, described)


def file_fps(rate: float | None) -> int:
    """Return the frames per second of video files of a model with this rate: a whole number, at least 1."""
    return DEFAULT_FPS if rate is None else max(1, round(rate))


def same_rate(rate: float, other: float) -> bool:
    """Return whether two rates are one in practice: 23.976 and 24, 29.97 and 30."""
    return abs(rate - other) <= 0.01 * other
