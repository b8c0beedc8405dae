"""Curriculum: blend weights and bucket shapes by optimizer step, such as images before videos."""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, PositiveInt, RootModel, model_validator

from reelweave.loader.blend.config import Factor
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.settings import Settings


class CurriculumStage(Settings):
    """Overrides of the configuration during a range of steps; unset keys keep their values."""

    until_step: PositiveInt | None = Field(
        default=None, description="first step of the next stage; null, in the last stage: no end"
    )
    weights: dict[str, Factor] | tuple[Factor, ...] | None = Field(
        default=None,
        description="weights of blend nodes by name (images, web/images), or of all nodes of the outermost blend",
    )
    frames: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = Field(
        default=None, description="allowed numbers of frames; null: those of the buckets"
    )
    sizes: Annotated[tuple[tuple[PositiveInt, PositiveInt], ...], Field(min_length=1)] | None = Field(
        default=None, description="allowed [height, width] in pixels; null: those of the buckets"
    )

    def buckets(self, config: BucketConfig) -> BucketConfig:
        """Return the bucket configuration of this stage.

        Raises:
            pydantic.ValidationError: frames or sizes make no valid bucket configuration, such as a repeated value.
        """
        changed = {"frames": self.frames, "sizes": self.sizes}
        changes = {name: value for name, value in changed.items() if value is not None}
        return BucketConfig.model_validate({**config.model_dump(), **changes})


class Curriculum(RootModel[tuple[CurriculumStage, ...]], frozen=True):
    """Stages of a run, in order; the last stage has no end."""

    root: tuple[CurriculumStage, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        *ends, last = [stage.until_step for stage in self.root]
        if last is not None:
            raise ValueError("the last stage lasts for ever; leave out its until_step")
        if any((until or 0) >= (other or 0) for until, other in pairwise([0, *ends])):
            raise ValueError(f"until_step must rise from stage to stage; here it is {ends}")
        return self

    def place_at(self, step: int) -> int:
        """Return the number of the stage of an optimizer step; steps count from 0 over the whole run."""
        return sum(stage.until_step is not None and stage.until_step <= step for stage in self.root)
