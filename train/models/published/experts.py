"""Wan 2.2's two experts: transformers of one pipeline, each for its side of a time.

`transformer` predicts where noise is much, `transformer_2` where it is little (Wan Team, Wan 2.2, 2025); the pipeline's
model_index.json has the boundary between them.
"""

from pathlib import Path

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.models.published.folder import PIPELINE, pipeline_description

ALL_TIMES = (0.0, 1.0)
HIGH_NOISE, LOW_NOISE = "transformer", "transformer_2"


def times_of(config: DiffusersConfig) -> tuple[float, float]:
    """Return the least and greatest time t in [0, 1] that a transformer predicts at.

    Args:
        config: configuration of the transformer; its subfolder says which expert it is.

    Raises:
        UsageError: it is one of two, and neither the configuration nor its pipeline says where they meet.
    """
    index = pipeline_description(config.name, "model.name")
    # A part that a pipeline lacks is there as [null, null].
    named = bool((index.get(LOW_NOISE) or [None])[-1])
    experts = named or config.subfolder == LOW_NOISE or (Path(config.name) / LOW_NOISE).is_dir()
    boundary = config.boundary
    if boundary is None and experts:
        boundary = index.get("boundary_ratio")
        if not isinstance(boundary, float) or not 0 < boundary < 1:
            raise UsageError(
                f"model.name={config.name!r} has two experts, and no boundary_ratio between 0 and 1 in its {PIPELINE}:"
                f" set model.boundary to the time from which {HIGH_NOISE} predicts (Wan 2.2: 0.875 for text to video,"
                " 0.9 for image to video)"
            )
    if boundary is None:
        return ALL_TIMES
    if config.subfolder not in (HIGH_NOISE, LOW_NOISE):
        raise UsageError(
            f"model.subfolder={config.subfolder!r} is none of the two experts: take {HIGH_NOISE} or {LOW_NOISE}, or"
            " leave model.boundary out"
        )
    return (boundary, 1.0) if config.subfolder == HIGH_NOISE else (0.0, boundary)


def other_expert(config: DiffusersConfig) -> DiffusersConfig:
    """Return the configuration of the expert for the other side of the boundary, with its published weights."""
    other = LOW_NOISE if config.subfolder == HIGH_NOISE else HIGH_NOISE
    return config.model_copy(update={"subfolder": other, "weights": None})
