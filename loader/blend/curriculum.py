"""What training looks like from step to step: images before videos, small before large."""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import BaseModel, Field, PositiveInt, RootModel, model_validator

from loader.blend.config import Factor
from loader.buckets.buckets import BucketConfig


class Stage(BaseModel, frozen=True, extra="forbid"):
    """What a stretch of steps changes of the configuration beside it; what it leaves out stays."""

    until_step: PositiveInt | None = Field(
        default=None, description="the first step of the next stage; null, for the last stage, is for ever"
    )
    weights: dict[str, Factor] | tuple[Factor, ...] | None = Field(
        default=None,
        description="of the blend's nodes, by name (images, web/images), or of all nodes of the outermost blend",
    )
    frames: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = Field(
        default=None, description="allowed frame counts, in place of the buckets' own"
    )
    sizes: Annotated[tuple[tuple[PositiveInt, PositiveInt], ...], Field(min_length=1)] | None = Field(
        default=None, description="allowed [height, width] in pixels, in place of the buckets' own"
    )

    def buckets(self, config: BucketConfig) -> BucketConfig:
        """The bucket configuration of this stage.

        Raises:
            pydantic.ValidationError: the frames or sizes are no bucket configuration, for one because one comes twice.
        """
        changed = {"frames": self.frames, "sizes": self.sizes}
        given = {name: value for name, value in changed.items() if value is not None}
        return BucketConfig.model_validate({**config.model_dump(), **given})


class Curriculum(RootModel[tuple[Stage, ...]], frozen=True):
    """The stages of a run, in order; the last has no end."""

    root: tuple[Stage, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        *ends, last = [stage.until_step for stage in self.root]
        if last is not None:
            raise ValueError("the last stage lasts for ever; leave out its until_step")
        if any((one or 0) >= (other or 0) for one, other in pairwise([0, *ends])):
            raise ValueError(f"until_step must rise from stage to stage; here it is {ends}")
        return self

    def place_at(self, step: int) -> int:
        """The place of the stage of an optimizer step, counted from 0 over the whole run."""
        return sum(stage.until_step is not None and stage.until_step <= step for stage in self.root)

    def stage_at(self, step: int) -> Stage:
        """The stage of an optimizer step."""
        return self.root[self.place_at(step)]
