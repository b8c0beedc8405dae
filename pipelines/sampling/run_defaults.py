"""Size, frames and guidance of a video that a command leaves out: those that the run was trained with."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.storage_options import storage_config


@dataclass(frozen=True)
class RunDefaults:
    """Shapes of a run's videos, and whether it can be guided.

    Attributes:
        source: configuration or checkpoint that says it.
        sizes: [height, width] of its buckets in pixels; empty: unknown.
        frames: numbers of frames of its buckets; empty: unknown.
        knows_empty_caption: True if the model knows videos without a caption, as every published one does.
    """

    source: str
    sizes: tuple[tuple[int, int], ...] = ()
    frames: tuple[int, ...] = ()
    knows_empty_caption: bool = True

    def largest(self) -> tuple[tuple[int, int] | None, int | None]:
        """Return the largest size that an MP4 in 4:2:0 can have, and the most frames; None: unknown."""
        even = [size for size in self.sizes if not any(pixels % 2 for pixels in size)]
        return max(even, key=lambda size: size[0] * size[1], default=None), max(self.frames, default=None)


class _Shapes(BaseModel):
    """Shapes of buckets as a checkpoint stores them, of any version."""

    frames: tuple[int, ...] | None = None
    sizes: tuple[tuple[int, int], ...] | None = None


def read_run_defaults(options: argparse.Namespace) -> RunDefaults:
    """Return what the run of ``--checkpoint`` or the configuration of ``--config`` says; reads no weights.

    Raises:
        UsageError: there is no such checkpoint or configuration.
        RunError: the checkpoint is damaged.
    """
    if options.config is not None:
        from reelweave.pipelines.configuration.config import resolve
        from reelweave.pipelines.configuration.train_config import TrainRunConfig

        config = resolve(TrainRunConfig, options.config, [])
        return _of_plans(options.config, config.stream.model_dump(mode="json"))
    from reelweave.train.checkpoint.folder import locate_checkpoint
    from reelweave.train.checkpoint.state import read_checkpoint_state

    storage, folder = locate_checkpoint(options.checkpoint, storage_config(options))
    state = read_checkpoint_state(storage, folder)
    is_published = state.config.get("model", {}).get("kind") == "diffusers"
    dropout = state.config.get("objective", {}).get("caption_dropout", 0)
    return _of_plans(storage.uri(folder), state.plans or {}, is_published or dropout > 0)


def _of_plans(source: str, plans: Mapping[str, Any], knows_empty_caption: bool = True) -> RunDefaults:
    """Return the shapes of the last stage, which is what the weights were trained on last."""
    stages = [plans.get("buckets") or {}, *(plans.get("curriculum") or [])[-1:]]
    try:
        parsed = [_Shapes.model_validate(stage) for stage in stages]
    except ValidationError as error:
        raise UsageError(f"{source}: its buckets are no shapes; give --size and --frames") from error
    sizes = [shapes.sizes for shapes in parsed if shapes.sizes]
    frames = [shapes.frames for shapes in parsed if shapes.frames]
    return RunDefaults(source, (sizes or [()])[-1], (frames or [()])[-1], knows_empty_caption)
